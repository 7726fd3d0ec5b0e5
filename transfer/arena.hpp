// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "transfer/os/memory.hpp"
#include "transfer/store.hpp"

namespace lehr::transfer {

/// Memory with a fixed base, of any space. `owner` keeps it mapped; null for memory that the caller
/// keeps.
struct MemoryRegion {
  std::byte* base = nullptr;
  Bytes bytes = 0;
  Space space = Space::kHostMemory;
  std::int32_t unit = -1;  ///< device ordinal
  std::shared_ptr<void> owner;
  std::vector<std::string> notices;
};

/// Anonymous host memory, bound and touched as the configuration says.
Result<MemoryRegion> host_region(const HostMemoryConfig& config);

struct ArenaConfig {
  std::string name;
  SlotId pages = 0;
  Bytes page_bytes = 0;
  /// Slots start at multiples of this (a power of two). 4096 lets pages go to and from files with
  /// O_DIRECT; memory that never meets a file may use less.
  Bytes alignment = 4096;
  std::uint32_t pages_per_extent = 64;  ///< batches are taken together, so that copies can merge
  bool guard_leases = true;
};

/// Page slots in memory. The base never moves.
class Arena final : public Store {
 public:
  static Bytes stride_for(const ArenaConfig& config);
  /// What create() needs of its region.
  static Bytes bytes_for(const ArenaConfig& config);
  /// Refused with kOverBudget when the region is too small.
  static Result<std::unique_ptr<Arena>> create(const ArenaConfig& config, MemoryRegion region);

  Address address(SlotId slot) const override;
  /// A slot's contents; only for host memory.
  std::span<std::byte> page(SlotId slot) const;
  std::span<std::byte> memory() const { return {region_.base, footprint_}; }

 private:
  explicit Arena(MemoryRegion region) : region_(std::move(region)) {}
  MemoryRegion region_;
};

}  // namespace lehr::transfer
