// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/dtype.hpp"
#include "kernels/base/geometry.hpp"
#include "kernels/base/result.hpp"
#include "runtime/contents/cpu_attend.hpp"
#include "runtime/contents/page_choice.hpp"
#include "runtime/contents/tensor.hpp"
#include "runtime/runtime.hpp"

namespace lehr::contents {

using runtime::SequenceId;

/// Full pages are rounded to what a lower precision holds, to see what it does to results. Pages
/// keep their size: this saves no bytes.
enum class Rounding : std::uint8_t { kNone, kE4m3, kInt8 };

struct ContentsOptions {
  KvGeometry geometry;
  Element element = Element::kF32;
  Rounding rounding = Rounding::kNone;
  std::optional<DType> lowers;  ///< what pages are lowered to where placement decides so
};

/// A sequence's part in a step of contents that hold a range of its tokens, numbered from the
/// range's first.
struct RangeTokens {
  SequenceId id = 0;
  std::uint32_t tokens = 0;   ///< of the step's new ones, that lie here
  std::uint32_t skip = 0;     ///< rows of the call's K and V before them
  std::uint32_t queries = 0;  ///< of the step, wherever their own tokens lie
  std::int64_t first = 0;     ///< where the first query's own token would lie
};

/// One layer's attention.
struct AttendCall {
  Tensor q;         ///< [batch, q_heads, tokens, head_dim]
  Tensor out;       ///< as q, any strides
  float scale = 0;  ///< 0: 1 / sqrt(head_dim)
  float soft_cap = 0;
  std::uint32_t window = 0;
  ChoiceRule choice;
  std::uint32_t code_pitch = 0;
  MassCode* mass = nullptr;  ///< [batch][kv_heads][code_pitch] of the last query, or null
  MassCode* peak = nullptr;
  /// Of a range: what is left of each query's softmax over it, [batch][q_heads][tokens], or null.
  SoftmaxPair* totals = nullptr;
};

struct ContentsStats {
  std::uint64_t read_in_hbm = 0;    ///< pages attended from HBM
  std::uint64_t read_in_place = 0;  ///< from the home tier
  std::uint64_t read_below = 0;     ///< from below it, through a copy
  std::uint64_t moved_pages = 0;    ///< that really crossed between tiers
  Bytes moved_bytes = 0;
};

/// What is in the pages of a runtime: K and V of the caller's model, and attention over them. The
/// step loop decides where pages live; this fills, reads and forgets them.
///
/// A step is begin(), then for each layer append() and at most one attend(), then end(). With one
/// token for each sequence it is a step of the policy; with more it is a chunk, placed like a
/// prompt. abandon() rolls the batch back to where begin() found it. Not thread-safe.
class Contents {
 public:
  virtual ~Contents() = default;

  virtual void created(SequenceId id) = 0;
  virtual void forked(SequenceId parent, SequenceId child) = 0;
  virtual void released(SequenceId id) = 0;
  /// After the step loop's own suspend() and resume().
  virtual Status suspended(SequenceId id) = 0;
  virtual Status resumed(SequenceId id) = 0;

  /// `stream` is the caller's, where the machine has streams; null elsewhere.
  virtual Status begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens,
                       void* stream) = 0;
  /// The same for ranges of tokens, of which new ones lie here or elsewhere: attend() is over the
  /// range alone. With one query each and no new token here, or one each, it is a step of the
  /// policy. kUnsupported where contents hold whole sequences only.
  virtual Status begin_range(std::span<const RangeTokens> batch, void* stream) = 0;
  virtual bool in_step() const = 0;
  /// K and V of the new tokens, [batch, kv_heads, tokens, head_dim]; rows past a sequence's own
  /// number are not looked at.
  virtual Status append(std::uint32_t layer, const Tensor& k, const Tensor& v) = 0;
  virtual Status attend(std::uint32_t layer, const AttendCall& call) = 0;
  virtual Result<runtime::StepReport> end() = 0;
  virtual Status abandon() = 0;

  virtual Status truncate(SequenceId id, std::uint64_t tokens) = 0;
  virtual Status reorder(std::span<const SequenceId> ids,
                         std::span<const std::uint32_t> parents) = 0;
  /// All K and V of a layer, [batch, kv_heads, tokens, head_dim]; rows past a sequence's end are 0.
  virtual Status gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                        const Tensor& v) = 0;

  /// Waits for what was enqueued.
  virtual Result<ContentsStats> stats() = 0;

  /// Memory that the host and all devices of the process read and write at the same address. Must
  /// be let go before this is.
  virtual Result<std::shared_ptr<std::byte>> shared_memory(Bytes bytes) = 0;
};

}  // namespace lehr::contents
