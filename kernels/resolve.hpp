// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// One page that a step read but HBM did not hold.
struct Miss {
  std::uint32_t group;  ///< sequence * kv_heads + KV head
  std::uint32_t page;   ///< logical
  std::uint32_t slot;   ///< HBM slot granted for it, or kNoSlot
  std::uint32_t kind;   ///< 0 over a link, 1 absent
};
static_assert(sizeof(Miss) == 16);

/// Looks up the residency of each selected page: lists misses and, where a free list is given,
/// grants HBM slots to pages that cross a link, so that attend installs them as it reads them. The
/// free list is a ring the host keeps ahead: slots free_slots[i % free_capacity], i from
/// counters->taken up to *free_available, a count that only grows. Grants are in order of arrival,
/// not of page.
struct ResolveCounters {
  std::uint32_t misses;  ///< how many there were; those past miss_capacity are counted, not listed
  std::uint32_t absent;
  std::uint32_t taken;  ///< slots granted since the start, modulo 2^32
  std::uint32_t reserved;
};
static_assert(sizeof(ResolveCounters) == 16);

struct ResolveParams {
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences]
  const std::uint32_t* selection =
      nullptr;  ///< [sequences][kv_heads][selection_pitch], or null: all pages
  const std::uint32_t* counts = nullptr;  ///< [sequences][kv_heads], or null
  Miss* misses = nullptr;
  ResolveCounters* counters = nullptr;  ///< misses and absent are set, taken is carried on
  std::uint64_t* installs =
      nullptr;  ///< as table: attend's installs; written for each selected page; or null
  const std::uint32_t* free_slots = nullptr;
  const std::uint32_t* free_available = nullptr;
  std::uint64_t pool = 0;        ///< address of slot 0
  std::uint32_t slot_pitch = 0;  ///< bytes from slot to slot
  std::uint32_t selection_pitch = 0;
  std::uint32_t miss_capacity = 0;
  std::uint32_t free_capacity = 0;
};
static_assert(sizeof(ResolveParams) == 96 && std::is_standard_layout_v<ResolveParams>);

Status check_resolve(const StepShape& shape, const ResolveParams& params);
Status resolve_reference(const StepShape& shape, const ResolveParams& params);
Status resolve_cuda(const StepShape& shape, const ResolveParams& params, void* stream);

/// A block table in the form that FlashInfer and vLLM use: index of the page's HBM slot in its
/// pool, or `absent` for pages that lie elsewhere. [sequences][kv_heads][max_pages], past the end
/// `absent`.
Status check_block_table(const StepShape& shape, const PageEntry* table,
                         const std::uint32_t* lengths, std::uint32_t slot_pitch,
                         const std::int32_t* blocks);
Status export_block_table_reference(const StepShape& shape, const PageEntry* table,
                                    const std::uint32_t* lengths, std::uint64_t pool,
                                    std::uint32_t slot_pitch, std::int32_t absent,
                                    std::int32_t* blocks);
Status export_block_table_cuda(const StepShape& shape, const PageEntry* table,
                               const std::uint32_t* lengths, std::uint64_t pool,
                               std::uint32_t slot_pitch, std::int32_t absent, std::int32_t* blocks,
                               void* stream);

}  // namespace lehr::kernels
