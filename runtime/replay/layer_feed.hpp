// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/base/exchange.hpp"
#include "runtime/replay/workload.hpp"

namespace lehr::runtime {

/// A recorded sequence as the layer views that a predictor learns from, with no placement under
/// them: what is read is known, where pages live is not. Page ids are (layer, KV head) times a
/// stride, plus the position.
class LayerFeed {
 public:
  /// What of the recorded masses is shown: engines may know the mean only, or nothing.
  enum class Masses : std::uint8_t { kMeanAndPeak, kMean, kNone };

  explicit LayerFeed(const TraceSelection& selection, Masses masses = Masses::kMeanAndPeak);

  std::uint32_t steps() const { return selection_->trace().steps(); }
  std::uint32_t layers() const { return selection_->trace().layers(); }
  std::uint32_t kv_heads() const { return selection_->trace().kv_heads(); }
  std::uint32_t page_tokens() const { return selection_->trace().meta().page_tokens; }
  /// Pages of a group at `step` that are full: all but the tail.
  std::uint32_t full_pages(std::uint32_t step) const {
    return selection_->trace().pages_at(step) - 1;
  }
  PageId page(std::uint32_t layer, std::uint32_t head, std::uint32_t position) const {
    return (layer * kv_heads() + head) * stride_ + position;
  }
  std::uint32_t pages() const { return layers() * kv_heads() * stride_; }

  /// Pages that exist before the first step.
  std::vector<PageId> prompt_pages() const;
  PageColumns columns() const { return {{}, {}, position_, layer_, sequence_}; }

  /// The layer of the step, resolved. Valid until the next call.
  const LayerView& view(std::uint32_t step, std::uint32_t layer);

  /// By position among the full pages at `step`: 1 if the group reads it then.
  void reads(std::uint32_t step, std::uint32_t layer, std::uint32_t head,
             std::vector<std::uint8_t>& out) const;

 private:
  const TraceSelection* selection_;
  Masses masses_;
  std::uint32_t stride_;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint16_t> layer_;
  std::vector<std::uint16_t> sequence_;
  std::vector<PageId> blocks_;
  std::vector<PageId> selected_;
  std::vector<PageId> filled_;
  std::vector<GroupView> groups_;
  LayerView view_;
};

}  // namespace lehr::runtime
