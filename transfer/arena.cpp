// SPDX-License-Identifier: Apache-2.0
#include "transfer/arena.hpp"

#include <bit>
#include <limits>

#include "kernels/base/check.hpp"

namespace lehr::transfer {

Result<MemoryRegion> host_region(const HostMemoryConfig& config) {
  LEHR_ASSIGN(HostMemory memory, HostMemory::create(config));
  auto owner = std::make_shared<HostMemory>(std::move(memory));
  MemoryRegion region;
  region.base = owner->data();
  region.bytes = owner->size();
  region.notices = owner->notices();
  region.owner = std::move(owner);
  return region;
}

Bytes Arena::stride_for(const ArenaConfig& config) {
  return (config.page_bytes + config.alignment - 1) & ~(config.alignment - 1);
}

Bytes Arena::bytes_for(const ArenaConfig& config) { return stride_for(config) * config.pages; }

Result<std::unique_ptr<Arena>> Arena::create(const ArenaConfig& config, MemoryRegion region) {
  if (!std::has_single_bit(config.alignment)) {
    return invalid(config.name + ": alignment must be a power of two");
  }
  if (config.page_bytes == 0 || config.page_bytes > kGiB) {
    return invalid(config.name + ": page bytes must be 1 to 1 GiB", Reason::kOutOfRange);
  }
  const Bytes needed = bytes_for(config);
  if (region.base == nullptr || needed > region.bytes) {
    return refused(Reason::kOverBudget, config.name + ": " + std::to_string(config.pages) +
                                            " pages need " + std::to_string(needed) +
                                            " bytes, the region has " +
                                            std::to_string(region.bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(region.base) % config.alignment != 0) {
    return invalid(config.name + ": the region does not start at a multiple of " +
                   std::to_string(config.alignment));
  }
  LEHR_ASSIGN(auto slots,
              SlotPool::create({config.pages, config.pages_per_extent, config.guard_leases}));
  std::unique_ptr<Arena> arena(new Arena(std::move(region)));
  arena->name_ = config.name;
  arena->space_ = arena->region_.space;
  arena->page_bytes_ = config.page_bytes;
  arena->stride_ = stride_for(config);
  arena->footprint_ = needed;
  arena->slots_ = std::move(slots);
  arena->notices_ = arena->region_.notices;
  return arena;
}

Address Arena::address(SlotId slot) const {
  return {region_.space, region_.unit, region_.base + stride_ * slot, 0};
}

std::span<std::byte> Arena::page(SlotId slot) const {
  LEHR_CHECK(1, space_ == Space::kHostMemory);
  return {region_.base + stride_ * slot, page_bytes_};
}

}  // namespace lehr::transfer
