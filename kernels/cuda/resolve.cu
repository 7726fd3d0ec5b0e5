// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/resolve_page.cuh"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/resolve.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

__global__ void resolve_kernel(StepShape shape, ResolveParams p) {
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  cuda::ListItem item;
  if (!cuda::list_item(shape, p, item)) return;
  cuda::resolve_page(shape, p, item.group, item.page);
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
