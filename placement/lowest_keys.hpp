// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// The page of lowest key among many whose keys all change at every step. Keys lie in a plain
/// column, so that changing one is a store; the lowest share of them is kept in a heap that is
/// filled by a scan now and then. Exact: a key within what the heap covers enters it at once, and
/// entries whose key has changed are ignored. Setting is O(1) but for those few; the lowest is
/// O(log n) amortised.
class LowestKeys {
 public:
  void clear() {
    keys_.clear();
    heap_.clear();
    held_.clear();
    covered_ = kLeast;
    size_ = 0;
  }

  bool contains(PageId page) const { return page < keys_.size() && keys_[page] != kAbsent; }
  double key(PageId page) const { return keys_[page]; }
  std::uint32_t size() const { return size_; }

  void set(PageId page, double key) {
    if (page >= keys_.size())
      keys_.resize(std::max<std::size_t>(page + std::size_t{1}, 2 * keys_.size()), kAbsent);
    size_ += keys_[page] == kAbsent ? 1 : 0;
    if (keys_[page] == key) return;
    keys_[page] = key;
    if (key > covered_) return;
    if (heap_.size() > size_ + kSlack) {  // mostly entries out of date
      heap_.clear();
      held_.clear();
      covered_ = kLeast;
    } else {
      push({key, page});
    }
  }

  void erase(PageId page) {
    if (!contains(page)) return;
    keys_[page] = kAbsent;
    --size_;
  }

  /// Guards may have fallen: pages that lowest() passed over are looked at again.
  void rewind() {
    for (const Entry& e : held_) push(e);
    held_.clear();
  }

  /// The page of lowest key (of equal ones the lowest number) with guard 0, or kNoPage. It stays.
  /// Until the next rewind() guards may rise but not fall.
  PageId lowest(std::span<const std::uint16_t> guard) {
    for (;;) {
      if (heap_.empty()) {
        if (covered_ == kAbsent) return kNoPage;
        cover(held_.size() + std::max<std::size_t>(kSlack, size_ / 8));
        continue;
      }
      const Entry top = heap_.front();
      const bool held = top.page < guard.size() && guard[top.page] != 0;
      const bool current = keys_[top.page] == top.key;
      if (current && !held) return top.page;
      if (current) held_.push_back(top);
      pop();
    }
  }

  /// The `count` pages of lowest key, in no particular but a fixed order. O(pages).
  void collect(std::size_t count, std::vector<PageId>& out) {
    cover(count);
    for (const Entry& e : heap_) out.push_back(e.page);
  }

 private:
  struct Entry {
    double key;
    PageId page;
    bool operator<(const Entry& o) const {  // heaps of std put the largest first
      return key != o.key ? key > o.key : page > o.page;
    }
  };
  static constexpr double kAbsent = std::numeric_limits<double>::infinity();
  static constexpr double kLeast = -std::numeric_limits<double>::infinity();
  static constexpr std::size_t kSlack = 64;

  void push(const Entry& e) {
    heap_.push_back(e);
    std::push_heap(heap_.begin(), heap_.end());
  }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
  }

  /// Fills the heap with at least the `count` lowest.
  void cover(std::size_t count) {
    heap_.clear();
    held_.clear();
    for (PageId p = 0; p < keys_.size(); ++p) {
      if (keys_[p] != kAbsent) heap_.push_back({keys_[p], p});
    }
    covered_ = kAbsent;
    if (heap_.size() > count) {
      const auto last = heap_.begin() + static_cast<std::ptrdiff_t>(count);
      std::nth_element(heap_.begin(), last, heap_.end(),
                       [](const Entry& a, const Entry& b) { return b < a; });
      covered_ = last->key;
      std::erase_if(heap_, [this](const Entry& e) { return e.key > covered_; });
    }
    std::make_heap(heap_.begin(), heap_.end());
  }

  std::vector<double> keys_;
  std::vector<Entry> heap_;
  std::vector<Entry> held_;  ///< passed over since the last rewind()
  double covered_ = kLeast;  ///< every key up to this one is in the heap
  std::uint32_t size_ = 0;
};

}  // namespace lehr::placement
