// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// Visit counts of dense ids, up to a top below 256, halved together by age(): halving is O(1),
/// each id catches up when it is looked at. 4 bytes an id.
class AgedCounts {
 public:
  void reset(std::uint32_t ids, std::uint32_t top) {
    cells_.assign(ids, 0);
    top_ = top;
    epoch_ = 0;
  }
  void reach(PageId id) {
    if (id >= cells_.size())
      cells_.resize(std::max<std::size_t>(id + std::size_t{1}, cells_.size() * 2));
  }

  std::uint32_t count(PageId id) const {
    if (id >= cells_.size()) return 0;
    const std::uint32_t halvings = (epoch_ - (cells_[id] >> 8)) & kEpochs;
    return halvings < 8 ? (cells_[id] & 0xFF) >> halvings : 0;
  }
  void set(PageId id, std::uint32_t count) { cells_[id] = epoch_ << 8 | std::min(count, top_); }
  std::uint32_t top() const { return top_; }
  void age() { epoch_ = (epoch_ + 1) & kEpochs; }

 private:
  static constexpr std::uint32_t kEpochs = 0xFFFFFF;
  std::vector<std::uint32_t> cells_;  ///< epoch of the last visit << 8 | count then
  std::uint32_t top_ = 255;
  std::uint32_t epoch_ = 0;
};

}  // namespace lehr::placement
