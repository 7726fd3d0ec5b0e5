// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"

namespace lehr::transfer {

/// Slots grouped in extents, so that pages taken together lie together: a batch comes from the open
/// extent in rising order, then from empty extents, and only then from the holes of used ones. An
/// extent that becomes empty is in rising order again. O(1) a slot (amortised for emptied extents).
/// Not thread safe; pure bookkeeping.
class ExtentAllocator {
 public:
  /// `slots` need not be a multiple of `slots_per_extent` (> 0): the last extent is smaller.
  ExtentAllocator(SlotId slots, std::uint32_t slots_per_extent);

  SlotId free_slots() const { return free_; }
  SlotId capacity() const { return slots_; }
  std::uint32_t slots_per_extent() const { return per_extent_; }

  /// Takes out.size() slots, or none and false.
  bool take(std::span<SlotId> out);
  /// Takes one certain free slot (a restart that finds it in use). O(slots of its extent).
  bool take_exactly(SlotId slot);
  /// `slot` must be taken.
  void give_back(SlotId slot);

  /// Checks the lists against each other; O(slots).
  Status validate() const;

 private:
  struct Extent {
    SlotId head = kNoSlot;
    std::uint32_t free = 0;
    std::uint32_t next = kNone, previous = kNone;
  };
  enum List : std::uint8_t { kEmpty = 0, kPartial = 1 };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  std::uint32_t extent_of(SlotId slot) const { return slot / per_extent_; }
  std::uint32_t size_of(std::uint32_t extent) const;
  void chain(std::uint32_t extent);
  void link(List list, std::uint32_t extent);
  void unlink(List list, std::uint32_t extent);
  SlotId take_one();

  SlotId slots_;
  std::uint32_t per_extent_;
  SlotId free_ = 0;
  std::uint32_t open_ = kNone;  ///< the extent that slots are being taken from; in neither list
  std::uint32_t heads_[2] = {kNone, kNone};
  std::vector<Extent> extents_;
  std::vector<SlotId> next_;  ///< next free slot of the same extent; a taken slot points to itself
};

}  // namespace lehr::transfer
