// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_consume.cuh"
#include "kernels/cuda/detail/attend_merge.cuh"
#include "kernels/cuda/detail/attend_produce.cuh"
#include "kernels/cuda/detail/attend_schedule.cuh"

/// Split-KV paged decode attention. A CTA is a scheduler warp that announces segments of work, two
/// producer warps that fill a ring of tiles in shared memory, consumer warps that each take whole
/// tiles, and a merger warp that adds up what they leave of a segment. See kernels/README.md.
namespace lehr::kernels::cuda {

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
__global__ void __launch_bounds__(attend_threads(kRowTiles), 1)
    attend_kernel(const __grid_constant__ AttendArgs args) {
  extern __shared__ __align__(128) unsigned char attend_shared[];
  using F = Frame<T, kDim, kRowTiles, kForms>;
  const F f(args, attend_shared);
  f.init_barriers();
  wait_for_previous_kernel();
  allow_next_kernel();
  const Scheduler<F> scheduler{f};
  const WorkCut cut = WorkCut::of(scheduler.scan_groups(), gridDim.x);
  constexpr std::uint32_t kConsumers = F::kConsumerWarps;
  if (f.warp < kConsumers) {
    Consumer<F>(f).run();
  } else if (f.warp < kConsumers + kProducerWarps) {
    Producer<F>(f).run();
  } else if (f.warp == kConsumers + kProducerWarps) {
    scheduler.run(cut);
  } else {
    Merger<F>{f}.run();
  }
}

}  // namespace lehr::kernels::cuda
