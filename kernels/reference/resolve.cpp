// SPDX-License-Identifier: Apache-2.0
#include "kernels/resolve.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/ids.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

/// The next slot of the free list, or kNoSlot where the host has not kept ahead.
SlotId grant(const ResolveParams& params) {
  if (params.installs == nullptr || params.free_capacity == 0) return kNoSlot;
  // The difference of two counters that only grow stays right when they wrap.
  if (static_cast<std::int32_t>(*params.free_available - params.counters->taken) <= 0)
    return kNoSlot;
  return params.free_slots[params.counters->taken++ % params.free_capacity];
}

void list_miss(const ResolveParams& params, PageEntry entry, std::size_t at, std::size_t group,
               std::uint32_t page) {
  const bool absent = entry == kAbsentPage;
  const SlotId slot = absent ? kNoSlot : grant(params);
  if (slot != kNoSlot) params.installs[at] = params.pool + std::uint64_t{slot} * params.slot_pitch;
  if (absent) ++params.counters->absent;
  const std::uint32_t index = params.counters->misses++;
  if (index >= params.miss_capacity) return;
  params.misses[index] = {static_cast<std::uint32_t>(group), page, slot, absent ? 1U : 0U};
}

}  // namespace

Status check_block_table(const StepShape& shape, const PageEntry* table,
                         const std::uint32_t* lengths, std::uint32_t slot_pitch,
                         const std::int32_t* blocks) {
  LEHR_TRY(check_shape(shape));
  if (slot_pitch == 0 || slot_pitch % kPageAlignment != 0) {
    return invalid(fmt::format("slot_pitch {}; a positive multiple of {} is expected", slot_pitch,
                               kPageAlignment));
  }
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(table, 8, "table"));
  LEHR_TRY(check_pointer(lengths, 4, "lengths"));
  return check_pointer(blocks, 4, "blocks");
}

Status check_resolve(const StepShape& shape, const ResolveParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.counters, 16, "counters"));
  if (params.miss_capacity > 0) LEHR_TRY(check_pointer(params.misses, 16, "misses"));
  if ((params.selection == nullptr) != (params.counts == nullptr)) {
    return invalid("selection and counts go together: one of them is null");
  }
  if (params.selection != nullptr &&
      (params.selection_pitch == 0 || params.selection_pitch > shape.max_pages)) {
    return invalid(fmt::format("selection_pitch {}; 1 to max_pages ({}) is expected",
                               params.selection_pitch, shape.max_pages),
                   Reason::kOutOfRange);
  }
  if (params.installs == nullptr) return {};
  LEHR_TRY(check_pointer(params.installs, 8, "installs"));
  if (params.free_capacity == 0) return {};
  LEHR_TRY(check_pointer(params.free_slots, 4, "free_slots"));
  LEHR_TRY(check_pointer(params.free_available, 4, "free_available"));
  if (params.pool % kPageAlignment != 0 || params.slot_pitch % kPageAlignment != 0 ||
      params.slot_pitch == 0) {
    return invalid(fmt::format("pool and slot_pitch must be multiples of {}", kPageAlignment));
  }
  return {};
}

Status resolve_reference(const StepShape& shape, const ResolveParams& params) {
  LEHR_TRY(check_resolve(shape, params));
  if (shape.sequences == 0) return {};
  params.counters->misses = 0;
  params.counters->absent = 0;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    reference::PageList list{
        nullptr,
        std::min(shape.pages_for(params.lengths[group / shape.kv_heads]), shape.max_pages)};
    if (params.selection != nullptr) {
      list = {params.selection + group * params.selection_pitch,
              std::min(params.counts[group], params.selection_pitch)};
    }
    for (std::uint32_t i = 0; i < list.count; ++i) {
      const std::size_t at = group * shape.max_pages + list.page(i);
      const PageEntry entry = params.table[at];
      if (params.installs != nullptr) params.installs[at] = 0;
      if (entry == kAbsentPage || entry_over_link(entry))
        list_miss(params, entry, at, group, list.page(i));
    }
  }
  return {};
}

Status export_block_table_reference(const StepShape& shape, const PageEntry* table,
                                    const std::uint32_t* lengths, std::uint64_t pool,
                                    std::uint32_t slot_pitch, std::int32_t absent,
                                    std::int32_t* blocks) {
  LEHR_TRY(check_block_table(shape, table, lengths, slot_pitch, blocks));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t pages = shape.pages_for(lengths[group / shape.kv_heads]);
    for (std::uint32_t page = 0; page < shape.max_pages; ++page) {
      const std::size_t at = group * shape.max_pages + page;
      const PageEntry entry = page < pages ? table[at] : kAbsentPage;
      const bool here =
          entry != kAbsentPage && !entry_over_link(entry) && entry_address(entry) >= pool;
      blocks[at] =
          here ? static_cast<std::int32_t>((entry_address(entry) - pool) / slot_pitch) : absent;
    }
  }
  return {};
}

}  // namespace lehr::kernels
