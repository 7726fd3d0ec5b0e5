// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/ids.hpp"
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/resolve.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

/// The next free slot, or kNoSlot: never takes what the host has not put out.
__device__ SlotId take_slot(const ResolveParams& p) {
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

__global__ void resolve_kernel(StepShape shape, ResolveParams p) {
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  cuda::ListItem item;
  if (!cuda::list_item(shape, p, item)) return;
  const std::size_t at = std::size_t{item.group} * shape.max_pages + item.page;
  const PageEntry entry = p.table[at];
  std::uint64_t install = 0;
  if (entry == kAbsentPage || entry_over_link(entry)) {
    SlotId slot = kNoSlot;
    if (entry != kAbsentPage && p.installs != nullptr && p.free_capacity > 0) slot = take_slot(p);
    if (slot != kNoSlot) install = p.pool + std::uint64_t{slot} * p.slot_pitch;
    if (entry == kAbsentPage) atomicAdd(&p.counters->absent, 1U);
    const std::uint32_t index = atomicAdd(&p.counters->misses, 1U);
    if (index < p.miss_capacity)
      p.misses[index] = {item.group, item.page, slot, entry == kAbsentPage ? 1U : 0U};
  }
  if (p.installs != nullptr) p.installs[at] = install;
}

__global__ void block_table_kernel(StepShape shape, const PageEntry* table,
                                   const std::uint32_t* lengths, std::uint64_t pool,
                                   std::uint32_t slot_pitch, std::int32_t absent,
                                   std::int32_t* blocks) {
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  const std::uint32_t page = blockIdx.x * kThreads + threadIdx.x;
  if (group >= shape.groups() || page >= shape.max_pages) return;
  const std::size_t at = std::size_t{group} * shape.max_pages + page;
  const PageEntry entry =
      page < cuda::sequence_pages(shape, lengths, group) ? table[at] : kAbsentPage;
  const bool here = entry != kAbsentPage && !entry_over_link(entry) && entry_address(entry) >= pool;
  blocks[at] =
      here ? static_cast<std::int32_t>((entry_address(entry) - pool) / slot_pitch) : absent;
}

}  // namespace

Status resolve_cuda(const StepShape& shape, const ResolveParams& params, void* stream) {
  LEHR_TRY(check_resolve(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  // misses and absent; taken is carried on.
  LEHR_CUDA_TRY(cudaMemsetAsync(params.counters, 0, 8, s));
  const std::uint32_t items =
      params.selection != nullptr ? params.selection_pitch : shape.max_pages;
  return cuda::launch(resolve_kernel, cuda::grid_over(shape, items, kThreads), dim3(kThreads), 0, s,
                      false, shape, params);
}

Status export_block_table_cuda(const StepShape& shape, const PageEntry* table,
                               const std::uint32_t* lengths, std::uint64_t pool,
                               std::uint32_t slot_pitch, std::int32_t absent, std::int32_t* blocks,
                               void* stream) {
  LEHR_TRY(check_block_table(shape, table, lengths, slot_pitch, blocks));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  return cuda::launch(block_table_kernel, cuda::grid_over(shape, shape.max_pages, kThreads),
                      dim3(kThreads), 0, s, false, shape, table, lengths, pool, slot_pitch, absent,
                      blocks);
}

}  // namespace lehr::kernels
