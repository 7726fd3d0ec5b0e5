// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/units.hpp"
#include "transfer/address.hpp"
#include "transfer/slot_pool.hpp"

namespace lehr::transfer {

/// A tier's places for pages: memory (Arena) or a file (PageFile). Slots lie `stride` bytes apart
/// in an extent; `page_bytes` of them are contents.
class Store {
 public:
  virtual ~Store() = default;

  /// Where a slot is. `slot` must be below the capacity.
  virtual Address address(SlotId slot) const = 0;

  const std::string& name() const { return name_; }
  Space space() const { return space_; }
  Bytes page_bytes() const { return page_bytes_; }
  Bytes stride() const { return stride_; }
  SlotPool& slots() const { return *slots_; }
  /// Bytes that the store takes from its memory or file system, all told.
  Bytes footprint_bytes() const { return footprint_; }
  /// What was asked for and could not be had.
  const std::vector<std::string>& notices() const { return notices_; }

 protected:
  std::string name_;
  Space space_ = Space::kHostMemory;
  Bytes page_bytes_ = 0;
  Bytes stride_ = 0;
  Bytes footprint_ = 0;
  std::unique_ptr<SlotPool> slots_;
  std::vector<std::string> notices_;
};

}  // namespace lehr::transfer
