// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_kernel.cuh"
#include "kernels/cuda/detail/resolve_page.cuh"
#include "kernels/cuda/detail/score_boxes.cuh"
#include "kernels/cuda/detail/select_pages.cuh"

/// A whole sparse step as one kernel: the CTAs choose pages, wait for each other, and attend.
namespace lehr::kernels::cuda {

struct StepArgs {
  AttendArgs attend;
  ScoreParams score;
  SelectParams select;
  ResolveParams resolve;
  FeedbackParams feedback;
  std::uint32_t* grid_words;
  std::uint32_t keys_at, scratch_at, shared_at;  ///< in shared memory, while pages are chosen
};

inline constexpr std::uint32_t kStepWarps = attend_threads(1) / 32;
static_assert(kStepWarps <= kMaxScoreWarps);

/// Groups in turn, a CTA each. Its memory is attend's afterwards.
template <class T, std::uint32_t kDim>
__device__ __forceinline__ void choose_pages(const StepArgs& x, unsigned char* memory) {
  auto* key = reinterpret_cast<std::uint32_t*>(memory + x.keys_at);
  auto& scratch = *reinterpret_cast<SelectScratch*>(memory + x.scratch_at);
  auto& shared = *reinterpret_cast<ScoreShared*>(memory + x.shared_at);
  const StepShape& shape = x.attend.shape;
  const Team alone;
  for (std::uint32_t group = blockIdx.x; group < x.attend.groups; group += gridDim.x) {
    const std::uint32_t pages = sequence_pages(shape, x.score.lengths, group);
    std::uint32_t* const list = x.select.selection + std::size_t{group} * x.select.pitch;
    if (pages == 0) {
      if (threadIdx.x == 0) x.select.counts[group] = 0;
      continue;
    }
    float* const scores =
        x.score.scores == nullptr ? nullptr : x.score.scores + std::size_t{group} * shape.max_pages;
    BoxScorer<T, kDim, kStepWarps>(shape, x.score, group, pages, shared, memory)
        .run(0, pages, [&](std::uint32_t page, float score) {
          key[page] = key_of(score);
          if (scores != nullptr) scores[page] = score;
        });
    const Keys keys{
        nullptr, key, 0, pages, pages, x.select.sinks, x.select.recent > 1 ? x.select.recent : 1};
    Selector(scratch, alone, keys).run(shape, x.select, list, x.select.counts + group);
    __syncthreads();
    if (x.resolve.table != nullptr) {
      const std::uint32_t count = *const_cast<volatile std::uint32_t*>(x.select.counts + group);
      for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        resolve_page(shape, x.resolve, group, __ldcg(list + i));
    }
    __syncthreads();
  }
}

template <class T, std::uint32_t kDim>
__global__ void __launch_bounds__(attend_threads(1), 1)
    step_kernel(const __grid_constant__ StepArgs args) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  choose_pages<T, kDim>(args, step_shared);
  shared_before_bulk();
  __syncthreads();
  const Frame<T, kDim, 1, PageForms::k16Bit> f(
      args.attend, step_shared, args.feedback.pairs != nullptr ? &args.feedback : nullptr);
  f.init_barriers();
  grid_barrier(args.grid_words);
  attend_roles(f);
}

using StepKernel = void (*)(StepArgs);
StepKernel step_f16(std::uint32_t head_dim);
StepKernel step_bf16(std::uint32_t head_dim);

}  // namespace lehr::kernels::cuda
