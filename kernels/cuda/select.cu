// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/select_pages.cuh"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kMaxTeam = 8;       ///< CTAs that may share memory everywhere
constexpr std::uint32_t kPagesACta = 8192;  ///< more are split over a cluster
constexpr std::uint32_t kMaxKeysShared =
    16384;  ///< without clusters: 64 KiB; longer rows are read again

__global__ void __launch_bounds__(kMaxThreads)
    select_kernel(StepShape shape, SelectParams p, std::uint32_t room) {
  extern __shared__ std::uint32_t select_keys[];
  __shared__ cuda::SelectScratch scratch;
  const auto team = cuda::Team::own();
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t group = blockIdx.x / team.size;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  if (pages == 0) {
    if (threadIdx.x == 0 && team.rank == 0) p.counts[group] = 0;
    return;
  }
  const float* scores = p.scores + std::size_t{group} * shape.max_pages;
  const std::uint32_t slice = (pages + team.size - 1) / team.size;
  const std::uint32_t first = team.rank * slice < pages ? team.rank * slice : pages;
  const std::uint32_t count = first + slice < pages ? slice : pages - first;
  if (room != 0) {
    for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x)
      select_keys[i] = cuda::key_of(scores[first + i]);
  }
  const cuda::Keys keys{scores,  room != 0 ? select_keys : nullptr, first, count, pages,
                        p.sinks, p.recent > 1 ? p.recent : 1};
  cuda::Selector(scratch, team, keys)
      .run(shape, p, p.selection + std::size_t{group} * p.pitch, p.counts + group);
}

}  // namespace

Status select_cuda(const StepShape& shape, const SelectParams& params, void* stream) {
  LEHR_TRY(check_select(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  std::uint32_t team = 1;
  if (device.bulk_copy) {
    while (team < kMaxTeam && team * kPagesACta < shape.max_pages) team *= 2;
  }
  const std::uint32_t slice = (shape.max_pages + team - 1) / team;
  const std::uint32_t room = slice <= kMaxKeysShared ? slice : 0;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(select_kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(kMaxKeysShared * 4)));
  const std::uint32_t threads = slice <= 1024 ? 256 : kMaxThreads;
  return cuda::launch_teams(select_kernel, dim3(static_cast<unsigned>(shape.groups()) * team),
                            dim3(threads), room * 4, s, device.bulk_copy, team, shape, params,
                            room);
}

}  // namespace lehr::kernels
