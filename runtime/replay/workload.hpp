// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "runtime/formats/attention_trace.hpp"
#include "runtime/selection.hpp"

namespace lehr::runtime {

/// Called now and then with the share done, in [0, 1].
using Progress = std::function<void(double)>;

/// What every step of a recorded trace reads, for one selection rule: computed once, used by every
/// policy. Groups are numbered (step * layers + layer) * kv_heads + head.
class TraceSelection {
 public:
  TraceSelection(const formats::AttentionTrace& trace, const SelectionRule& rule,
                 const Progress& progress = {});

  const formats::AttentionTrace& trace() const { return *trace_; }
  std::size_t group(std::uint32_t step, std::uint32_t layer, std::uint32_t head) const {
    return (std::size_t{step} * trace_->layers() + layer) * trace_->kv_heads() + head;
  }
  /// Ascending page indices.
  std::span<const std::uint32_t> pages(std::size_t g) const {
    return std::span(pages_).subspan(begin_[g], begin_[g + 1] - begin_[g]);
  }
  std::uint64_t visits() const { return pages_.size(); }

  /// Full knowledge. Steps are the trace's; kNoStep: never.
  static constexpr std::uint32_t kNoStep = 0xFFFFFFFF;
  /// Aligned with pages(g): the next step in which the same page is read.
  std::span<const std::uint32_t> next_step(std::size_t g) const {
    return std::span(next_).subspan(begin_[g], begin_[g + 1] - begin_[g]);
  }
  /// First step that reads a page as an ordinary one (for pages that fill during the trace: after
  /// that).
  std::uint32_t first_step(std::uint32_t layer, std::uint32_t head, std::uint32_t page) const {
    return first_[(std::size_t{layer} * trace_->kv_heads() + head) * trace_->pages() + page];
  }

 private:
  void look_ahead();

  const formats::AttentionTrace* trace_;
  std::vector<std::uint64_t> begin_;
  std::vector<std::uint32_t> pages_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> first_;
};

/// One sequence of a replay: a trace's selection, and the step in which it joins the batch.
struct ReplaySequence {
  const TraceSelection* selection = nullptr;
  std::uint32_t start = 0;
};

/// A batch of recorded sequences with a shared budget. All have the same layers, KV heads and page
/// shape.
struct Workload {
  std::vector<ReplaySequence> sequences;

  std::uint32_t steps() const;
  std::uint32_t layers() const { return sequences.front().selection->trace().layers(); }
  /// Pages of all sequences when each has ended.
  std::uint64_t total_pages() const;
  /// Most sequences in the batch at once.
  std::uint32_t peak_sequences() const;
  /// Same shape everywhere, not empty; the error names the trace that differs.
  Status validate() const;
};

}  // namespace lehr::runtime
