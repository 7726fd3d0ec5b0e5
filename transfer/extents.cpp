// SPDX-License-Identifier: Apache-2.0
#include "transfer/extents.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace lehr::transfer {

ExtentAllocator::ExtentAllocator(SlotId slots, std::uint32_t slots_per_extent)
    : slots_(slots), per_extent_(std::max(1U, slots_per_extent)), free_(slots), next_(slots) {
  extents_.resize((slots + per_extent_ - 1) / per_extent_);
  // Backwards, so that the list of empty extents starts with the first.
  for (auto e = static_cast<std::uint32_t>(extents_.size()); e-- > 0;) {
    chain(e);
    link(kEmpty, e);
  }
}

std::uint32_t ExtentAllocator::size_of(std::uint32_t extent) const {
  return std::min(per_extent_, slots_ - extent * per_extent_);
}

void ExtentAllocator::chain(std::uint32_t extent) {
  const SlotId first = extent * per_extent_;
  const std::uint32_t size = size_of(extent);
  for (std::uint32_t i = 0; i < size; ++i)
    next_[first + i] = i + 1 < size ? first + i + 1 : kNoSlot;
  extents_[extent].head = first;
  extents_[extent].free = size;
}

void ExtentAllocator::link(List list, std::uint32_t extent) {
  Extent& e = extents_[extent];
  e.next = heads_[list];
  e.previous = kNone;
  if (e.next != kNone) extents_[e.next].previous = extent;
  heads_[list] = extent;
}

void ExtentAllocator::unlink(List list, std::uint32_t extent) {
  const Extent& e = extents_[extent];
  if (e.previous != kNone) {
    extents_[e.previous].next = e.next;
  } else {
    heads_[list] = e.next;
  }
  if (e.next != kNone) extents_[e.next].previous = e.previous;
}

SlotId ExtentAllocator::take_one() {
  if (open_ == kNone) {
    const List list = heads_[kEmpty] != kNone ? kEmpty : kPartial;
    open_ = heads_[list];
    unlink(list, open_);
  }
  Extent& e = extents_[open_];
  const SlotId slot = e.head;
  e.head = next_[slot];
  next_[slot] = slot;
  --free_;
  if (--e.free == 0) open_ = kNone;
  return slot;
}

bool ExtentAllocator::take(std::span<SlotId> out) {
  if (out.size() > free_) return false;
  for (SlotId& slot : out) slot = take_one();
  return true;
}

bool ExtentAllocator::take_exactly(SlotId slot) {
  if (slot >= slots_ || next_[slot] == slot) return false;
  const std::uint32_t extent = extent_of(slot);
  Extent& e = extents_[extent];
  SlotId* at = &e.head;
  while (*at != slot) at = &next_[*at];
  *at = next_[slot];
  next_[slot] = slot;
  --free_;
  const bool was_empty = e.free == size_of(extent);
  --e.free;
  if (extent == open_) {
    if (e.free == 0) open_ = kNone;
    return true;
  }
  unlink(was_empty ? kEmpty : kPartial, extent);
  if (e.free != 0) link(kPartial, extent);
  return true;
}

void ExtentAllocator::give_back(SlotId slot) {
  LEHR_CHECK(1, slot < slots_ && next_[slot] == slot);
  const std::uint32_t extent = extent_of(slot);
  Extent& e = extents_[extent];
  next_[slot] = e.head;
  e.head = slot;
  ++free_;
  ++e.free;
  const bool emptied = e.free == size_of(extent);
  if (emptied) chain(extent);
  if (extent == open_) return;
  if (e.free > 1) unlink(kPartial, extent);
  link(emptied ? kEmpty : kPartial, extent);
}

Status ExtentAllocator::validate() const {
  SlotId counted = 0;
  std::vector<bool> seen(slots_, false);
  for (std::uint32_t e = 0; e < extents_.size(); ++e) {
    std::uint32_t here = 0;
    for (SlotId s = extents_[e].head; s != kNoSlot; s = next_[s]) {
      if (s >= slots_ || extent_of(s) != e || seen[s] || next_[s] == s) {
        return internal_error("extent allocator: broken free list of extent " + std::to_string(e));
      }
      seen[s] = true;
      ++here;
    }
    if (here != extents_[e].free) {
      return internal_error("extent allocator: wrong count of extent " + std::to_string(e));
    }
    counted += here;
  }
  std::size_t listed = open_ == kNone ? 0 : 1;
  for (const List list : {kEmpty, kPartial}) {
    for (std::uint32_t e = heads_[list]; e != kNone; e = extents_[e].next) {
      const bool empty = extents_[e].free == size_of(e);
      if (extents_[e].free == 0 || empty != (list == kEmpty) || ++listed > extents_.size()) {
        return internal_error("extent allocator: extent " + std::to_string(e) +
                              " is in a wrong list");
      }
    }
  }
  const auto full = static_cast<std::size_t>(
      std::count_if(extents_.begin(), extents_.end(), [](const Extent& e) { return e.free == 0; }));
  if (counted != free_ || listed + full != extents_.size()) {
    return internal_error("extent allocator: counts do not add up");
  }
  return {};
}

}  // namespace lehr::transfer
