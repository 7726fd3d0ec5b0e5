// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/ids.hpp"
#include "kernels/resolve.hpp"

namespace lehr::kernels::cuda {

/// The next free slot, or kNoSlot: never takes what the host has not put out.
__device__ __forceinline__ SlotId take_slot(const ResolveParams& p) {
  const std::uint32_t available =
      *reinterpret_cast<const volatile std::uint32_t*>(p.free_available);
  std::uint32_t taken = *reinterpret_cast<volatile std::uint32_t*>(&p.counters->taken);
  while (static_cast<std::int32_t>(available - taken) > 0) {
    const std::uint32_t seen = atomicCAS(&p.counters->taken, taken, taken + 1);
    if (seen == taken) return p.free_slots[taken % p.free_capacity];
    taken = seen;
  }
  return kNoSlot;
}

/// Looks up one selected page; one thread.
__device__ __forceinline__ void resolve_page(const StepShape& shape, const ResolveParams& p,
                                             std::uint32_t group, std::uint32_t page) {
  const std::size_t at = std::size_t{group} * shape.max_pages + page;
  const PageEntry entry = p.table[at];
  std::uint64_t install = 0;
  if (entry == kAbsentPage || entry_over_link(entry)) {
    SlotId slot = kNoSlot;
    if (entry != kAbsentPage && p.installs != nullptr && p.free_capacity > 0) slot = take_slot(p);
    if (slot != kNoSlot) install = p.pool + std::uint64_t{slot} * p.slot_pitch;
    if (entry == kAbsentPage) atomicAdd(&p.counters->absent, 1U);
    const std::uint32_t index = atomicAdd(&p.counters->misses, 1U);
    if (index < p.miss_capacity)
      p.misses[index] = {group, page, slot, entry == kAbsentPage ? 1U : 0U};
  }
  if (p.installs != nullptr) p.installs[at] = install;
}

}  // namespace lehr::kernels::cuda
