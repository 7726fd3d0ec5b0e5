// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/workload.hpp"

#include <algorithm>

#include <fmt/core.h>

namespace lehr::runtime {

TraceSelection::TraceSelection(const formats::AttentionTrace& trace, const SelectionRule& rule,
                               const Progress& progress)
    : trace_(&trace) {
  Selector selector(rule);
  begin_.reserve(group(trace.steps(), 0, 0) + 1);
  begin_.push_back(0);
  for (std::uint32_t t = 0; t < trace.steps(); ++t) {
    if (progress) progress(static_cast<double>(t) / trace.steps());
    for (std::uint32_t l = 0; l < trace.layers(); ++l) {
      for (std::uint32_t h = 0; h < trace.kv_heads(); ++h) {
        const auto chosen =
            selector.select(trace.mass_row(t, l, h), trace.peak_row(t, l, h), trace.pages_at(t));
        pages_.insert(pages_.end(), chosen.begin(), chosen.end());
        begin_.push_back(pages_.size());
      }
    }
  }
  look_ahead();
}

void TraceSelection::look_ahead() {
  const std::uint32_t steps = trace_->steps();
  next_.resize(pages_.size());
  first_.assign(std::size_t{trace_->layers()} * trace_->kv_heads() * trace_->pages(), kNoStep);
  for (std::uint32_t t = steps; t-- > 0;) {
    const std::uint32_t tail = trace_->pages_at(t) - 1;
    for (std::uint32_t l = 0; l < trace_->layers(); ++l) {
      for (std::uint32_t h = 0; h < trace_->kv_heads(); ++h) {
        const std::size_t g = group(t, l, h);
        std::uint32_t* first =
            first_.data() + (std::size_t{l} * trace_->kv_heads() + h) * trace_->pages();
        for (std::uint64_t i = begin_[g]; i < begin_[g + 1]; ++i) {
          const std::uint32_t page = pages_[i];
          next_[i] = first[page];
          if (page != tail) first[page] = t;
        }
      }
    }
  }
}

std::uint32_t Workload::steps() const {
  std::uint32_t last = 0;
  for (const ReplaySequence& s : sequences) {
    last = std::max(last, s.start + s.selection->trace().steps());
  }
  return last;
}

std::uint64_t Workload::total_pages() const {
  std::uint64_t pages = 0;
  for (const ReplaySequence& s : sequences) {
    const auto& trace = s.selection->trace();
    pages += std::uint64_t{trace.pages()} * trace.layers() * trace.kv_heads();
  }
  return pages;
}

std::uint32_t Workload::peak_sequences() const {
  std::uint32_t peak = 0;
  for (const ReplaySequence& arriving : sequences) {  // the peak is reached when one arrives
    std::uint32_t live = 0;
    for (const ReplaySequence& s : sequences) {
      live += s.start <= arriving.start && arriving.start < s.start + s.selection->trace().steps()
                  ? 1
                  : 0;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

Status Workload::validate() const {
  if (sequences.empty()) return invalid("a workload needs at least one sequence");
  const KvGeometry first = sequences.front().selection->trace().geometry();
  for (const ReplaySequence& s : sequences) {
    const KvGeometry g = s.selection->trace().geometry();
    if (g.layers != first.layers || g.kv_heads != first.kv_heads ||
        g.page_tokens != first.page_tokens || g.head_dim != first.head_dim ||
        g.element_bytes != first.element_bytes) {
      return invalid(
          fmt::format("traces of one batch must agree in layers, KV heads and page shape: workload "
                      "'{}' has {} layers, "
                      "{} KV heads, {} tokens a page, head_dim {}, {} bytes an element; the first "
                      "has {}, {}, {}, {}, {}",
                      s.selection->trace().meta().workload, g.layers, g.kv_heads, g.page_tokens,
                      g.head_dim, g.element_bytes, first.layers, first.kv_heads, first.page_tokens,
                      first.head_dim, first.element_bytes));
    }
  }
  return {};
}

}  // namespace lehr::runtime
