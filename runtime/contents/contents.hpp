// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/base/geometry.hpp"
#include "kernels/base/result.hpp"
#include "runtime/contents/cpu_attend.hpp"
#include "runtime/contents/page_choice.hpp"
#include "runtime/contents/tensor.hpp"
#include "runtime/machines/host.hpp"
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
};

struct ContentsStats {
  std::uint64_t read_in_hbm = 0;    ///< pages attended from HBM
  std::uint64_t read_in_place = 0;  ///< from the home tier
  std::uint64_t read_below = 0;     ///< from below it, through a copy
  std::uint64_t moved_pages = 0;    ///< that really crossed between tiers
  Bytes moved_bytes = 0;
};

/// What is in the pages of a runtime on the host machine: K and V of the caller's model, and
/// attention over them. The step loop decides where pages live; this fills, reads and forgets them.
///
/// A step is begin(), then for each layer append() and at most one attend(), then end(). With one
/// token for each sequence it is a step of the policy; with more it is a chunk, placed like a
/// prompt. abandon() rolls the batch back to where begin() found it. Not thread-safe.
class Contents final : public runtime::PageSource {
 public:
  static Result<std::unique_ptr<Contents>> create(const ContentsOptions& options);

  /// Both live as long as this; called once, before anything else.
  void attach(runtime::Runtime& runtime, runtime::HostMachine& machine);

  void created(SequenceId id);
  void forked(SequenceId parent, SequenceId child);
  void released(SequenceId id) { sequences_.erase(id); }

  Status begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens);
  bool in_step() const { return mode_ != Mode::kIdle; }
  /// K and V of the new tokens, [batch, kv_heads, tokens, head_dim]; rows past a sequence's own
  /// number are not looked at.
  Status append(std::uint32_t layer, const Tensor& k, const Tensor& v);
  Status attend(std::uint32_t layer, const AttendCall& call);
  Result<runtime::StepReport> end();
  Status abandon();

  Status truncate(SequenceId id, std::uint64_t tokens);
  Status reorder(std::span<const SequenceId> ids, std::span<const std::uint32_t> parents);
  /// All K and V of a layer, [batch, kv_heads, tokens, head_dim]; rows past a sequence's end are 0.
  Status gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                const Tensor& v);

  ContentsStats stats() const;
  const PageShape& page() const { return page_; }

  bool fill(PageId page, std::uint32_t version, std::span<std::byte> out) override;

 private:
  enum class Mode : std::uint8_t { kIdle, kStep, kChunk };

  /// The partial page of each KV group, [groups][page bytes]; shared between forks until one
  /// writes.
  using Tail = std::vector<std::byte>;
  struct SequenceState {
    std::shared_ptr<Tail> tail;
    std::vector<std::vector<MassCode>> mass;  ///< by group: of each page, when it was read last
    std::vector<std::vector<MassCode>> peak;
  };
  struct Member {  ///< of the batch
    SequenceId id = 0;
    std::uint32_t tokens = 0;
    std::uint64_t before = 0;
    std::shared_ptr<Tail> tail;  ///< as it was, where a roll back may need it
  };

  explicit Contents(const ContentsOptions& options);
  std::byte* tail_of(SequenceId id, std::uint32_t group);
  Status write_rows(std::size_t member, std::uint32_t head, const Tensor& k, const Tensor& v);
  Status page_filled(PageId page, std::byte* contents);
  Status grow();
  Status bring(PageId page);
  Status close_layer();
  Status run_layer(const AttendCall* call);
  void choose(const AttendCall& call, std::size_t member, std::uint32_t head);
  Result<const std::byte*> locate(PageId page, std::size_t scratch_at, bool count);
  Status attend_member(const AttendCall& call, std::size_t member, std::uint32_t head);
  Status gather_rows(std::uint32_t layer, SequenceId id, std::uint32_t head, std::size_t offset,
                     std::size_t index, const Tensor& out);
  void note_mass(const AttendCall& call, std::size_t member, std::uint32_t head,
                 std::span<const std::uint32_t> pages);
  void round(std::byte* contents) const;
  void roll_back(const Member& member);

  KvGeometry geometry_;
  PageShape page_;
  Rounding rounding_;
  runtime::Runtime* runtime_ = nullptr;
  runtime::HostMachine* machine_ = nullptr;
  TierId home_ = 0;
  std::unordered_map<SequenceId, SequenceState> sequences_;
  std::vector<float> boxes_;  ///< [pages of the table][2][dim]

  Mode mode_ = Mode::kIdle;
  std::vector<Member> batch_;
  std::uint32_t layer_ = 0;
  bool appended_ = false;  ///< this layer's K and V are there
  bool attended_ = false;
  std::unordered_map<PageId, std::vector<runtime::PageOp>> deferred_;
  std::unordered_map<PageId, const std::byte*> writing_;  ///< tails that the layer fills
  ContentsStats stats_;
  ContentsStats before_;  ///< the step

  // Working memory.
  AttendScratch scratch_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> scores_;
  std::vector<std::vector<std::uint32_t>> chosen_;  ///< [batch][kv_heads]
  std::vector<PageRef> refs_;
  std::vector<SoftmaxPair> pairs_;
  std::vector<SoftmaxPair> totals_;
  std::vector<std::byte> below_;
};

}  // namespace lehr::contents
