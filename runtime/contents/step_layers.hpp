// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/contents/contents.hpp"

namespace lehr::contents {

/// How far an open step is: each layer gets its K and V, in order, and then at most one attention.
class StepLayers {
 public:
  void begin() { *this = {}; }
  std::uint32_t with_kv() const { return with_kv_; }
  bool started() const { return with_kv_ > 0; }
  /// The latest layer that has its K and V; 0 before the first.
  std::uint32_t at() const { return started() ? with_kv_ - 1 : 0; }
  /// K and V of `layer` are there and nothing has read them yet.
  bool open(std::uint32_t layer) const { return started() && layer == at() && !closed_; }
  bool closed() const { return closed_; }

  void append() {
    ++with_kv_;
    closed_ = false;
  }
  /// Attended, or passed over.
  void close() { closed_ = true; }

  Status check_append(std::uint32_t layer, std::uint32_t layers) const;
  Status check_attend(std::uint32_t layer) const;
  Status check_end(std::uint32_t layers) const;

 private:
  std::uint32_t with_kv_ = 0;
  bool closed_ = false;
};

// What every form of contents asks of a call.

/// Tokens of each sequence before the step. kNotFound, or kInvalid where one is named twice.
Result<std::vector<std::uint64_t>> tokens_before(const runtime::Runtime& runtime,
                                                 std::span<const SequenceId> batch);

/// Whether K and V are those of `batch` sequences of at most `tokens` new tokens.
Status check_kv(const KvGeometry& geometry, Element element, std::size_t batch,
                std::uint64_t tokens, const Tensor& k, const Tensor& v);

/// `tokens`: most new tokens of a sequence; `pages`: most pages of a context.
Status check_attend_call(const KvGeometry& geometry, Element element, const AttendCall& call,
                         std::size_t batch, std::uint32_t tokens, std::size_t pages, bool chunk);

/// Lengths of the sequences that a gather of `layer` copies to k and v.
Result<std::vector<std::uint32_t>> gathered_lengths(const KvGeometry& geometry, Element element,
                                                    const runtime::Runtime& runtime,
                                                    std::uint32_t layer,
                                                    std::span<const SequenceId> ids,
                                                    const Tensor& k, const Tensor& v);

}  // namespace lehr::contents
