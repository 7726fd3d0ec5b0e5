// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lehr::placement {

/// Many items of which a few are wanted, the greatest first: only as many are sorted as are looked
/// at, in chunks that double. `Less` is a strict order in which no two items are equal, so that the
/// sequence does not depend on how it is found.
template <class Item, class Less>
class Likeliest {
 public:
  /// Takes over `items`; what was here is in it afterwards, to be filled anew.
  void swap_in(std::vector<Item>& items) {
    items_.swap(items);
    sorted_from_ = items_.size();
    chunk_ = kChunk;
  }

  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  /// The n-th greatest, from 0, below size().
  const Item& at(std::size_t n) {
    while (items_.size() - n - 1 < sorted_from_) sort_more();
    return items_[items_.size() - n - 1];
  }
  void pop() {
    at(0);
    items_.pop_back();
  }

 private:
  static constexpr std::size_t kChunk = 128;

  void sort_more() {
    const std::size_t from = sorted_from_ > chunk_ ? sorted_from_ - chunk_ : 0;
    chunk_ *= 2;
    const auto begin = items_.begin();
    const auto first = begin + static_cast<std::ptrdiff_t>(from);
    const auto last = begin + static_cast<std::ptrdiff_t>(sorted_from_);
    if (from > 0) std::nth_element(begin, first, last, Less());
    std::sort(first, last, Less());
    sorted_from_ = from;
  }

  std::vector<Item> items_;  ///< from sorted_from_ on in rising order, those before are less
  std::size_t sorted_from_ = 0;
  std::size_t chunk_ = kChunk;
};

}  // namespace lehr::placement
