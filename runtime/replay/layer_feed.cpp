// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/layer_feed.hpp"

#include <algorithm>
#include <numeric>

namespace lehr::runtime {

LayerFeed::LayerFeed(const TraceSelection& selection, Masses masses)
    : selection_(&selection), masses_(masses), stride_(selection.trace().pages()) {
  position_.resize(pages());
  layer_.resize(pages());
  sequence_.resize(pages(), 0);
  for (std::uint32_t p = 0; p < pages(); ++p) {
    position_[p] = p % stride_;
    layer_[p] = static_cast<std::uint16_t>(p / stride_ / kv_heads());
  }
  blocks_.resize(stride_);
  std::iota(blocks_.begin(), blocks_.end(), PageId{0});
}

std::vector<PageId> LayerFeed::prompt_pages() const {
  std::vector<PageId> out;
  for (std::uint32_t l = 0; l < layers(); ++l) {
    for (std::uint32_t h = 0; h < kv_heads(); ++h) {
      for (std::uint32_t i = 0; i < full_pages(0); ++i) out.push_back(page(l, h, i));
    }
  }
  return out;
}

const LayerView& LayerFeed::view(std::uint32_t step, std::uint32_t layer) {
  const auto& trace = selection_->trace();
  const std::uint32_t tail = full_pages(step);
  selected_.clear();
  filled_.clear();
  groups_.clear();
  for (std::uint32_t h = 0; h < kv_heads(); ++h) {
    GroupView g;
    g.blocks = std::span(blocks_).first(std::size_t{tail} + 1);
    g.offset = page(layer, h, 0);
    g.mass = masses_ != Masses::kNone ? trace.mass_row(step, layer, h) : nullptr;
    g.peak = masses_ == Masses::kMeanAndPeak ? trace.peak_row(step, layer, h) : nullptr;
    g.first = static_cast<std::uint32_t>(selected_.size());
    g.kv_head = h;
    for (const std::uint32_t i : selection_->pages(selection_->group(step, layer, h))) {
      if (i < tail) selected_.push_back(g.offset + i);
    }
    g.count = static_cast<std::uint32_t>(selected_.size()) - g.first;
    groups_.push_back(g);
    if (step > 0 && tail > full_pages(step - 1)) filled_.push_back(g.offset + tail - 1);
  }
  view_ = {};
  view_.step = step;
  view_.layer = layer;
  view_.layers = layers();
  view_.tick = step * layers() + layer;
  view_.selected = selected_;
  view_.groups = groups_;
  view_.filled = filled_;
  view_.pages = columns();
  return view_;
}

void LayerFeed::reads(std::uint32_t step, std::uint32_t layer, std::uint32_t head,
                      std::vector<std::uint8_t>& out) const {
  out.assign(full_pages(step), 0);
  for (const std::uint32_t i : selection_->pages(selection_->group(step, layer, head))) {
    if (i < out.size()) out[i] = 1;
  }
}

}  // namespace lehr::runtime
