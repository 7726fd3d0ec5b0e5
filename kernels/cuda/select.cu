// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/select.hpp"

namespace lehr::kernels {
namespace {

using Weight = unsigned long long;

constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kMaxKeysShared = 16384;  ///< 64 KiB; longer rows are read from L2 again

/// Order of scores as unsigned integers; never 0. Both zeros are one value, NaN is the greatest.
__device__ __forceinline__ std::uint32_t key_of(float score) {
  if (isnan(score)) score = INFINITY;
  if (score == 0.0F) score = 0.0F;
  const std::uint32_t bits = __float_as_uint(score) == 0x80000000U ? 0U : __float_as_uint(score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float score_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

struct Scratch {
  Weight bins[256];
  std::uint32_t counts[256];  ///< the same for weights of 1: atomics on one word are far cheaper
  Weight chosen_before;       ///< weight of all keys above the chosen bin
  std::uint32_t chosen;
  std::uint32_t warp_above[32], warp_equal[32];
};

/// One group's keys, in shared memory where they fit. 0 marks forced pages when `skip_forced`.
struct Keys {
  const float* scores;
  const std::uint32_t* shared;
  std::uint32_t pages, sinks, recent;

  __device__ bool forced(std::uint32_t page) const {
    return page < sinks || page + recent >= pages;
  }
  __device__ std::uint32_t at(std::uint32_t page) const {
    return shared != nullptr ? shared[page] : key_of(scores[page]);
  }
};

/// The bin in which the running weight, from the top, reaches the target. One warp.
template <class Bin>
__device__ void choose_bin(Scratch& s, const Bin* bins, Weight target) {
  const std::uint32_t lane = threadIdx.x;
  Weight own = 0;
  for (std::uint32_t i = 0; i < 8; ++i) own += bins[255 - (lane * 8 + i)];
  Weight upto = own;
  for (std::uint32_t d = 1; d < 32; d *= 2) {
    const Weight other = __shfl_up_sync(~0U, upto, d);
    if (lane >= d) upto += other;
  }
  const std::uint32_t reached = __ballot_sync(~0U, upto >= target);
  // Rounding of weights may leave the target just out of reach: then everything is wanted.
  const std::uint32_t winner =
      reached != 0 ? static_cast<std::uint32_t>(__ffs(static_cast<int>(reached))) - 1 : 31;
  if (lane != winner) return;
  Weight before = upto - own;
  std::uint32_t bin = 255 - lane * 8;
  for (std::uint32_t i = 0; i < 7 && before + bins[bin] < target; ++i) before += bins[bin--];
  s.chosen = bin;
  s.chosen_before = before;
}

struct Threshold {
  std::uint32_t key;  ///< all keys above are in
  Weight above;       ///< their weight
};

/// The key at which the running weight of keys in falling order reaches `target` (at least 1).
template <class WeightOf>
__device__ Threshold find_threshold(Scratch& s, const Keys& keys, bool skip_forced, Weight target,
                                    bool counting, WeightOf weight_of) {
  std::uint32_t prefix = 0, mask = 0;
  Weight above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (std::uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
      if (counting) s.counts[i] = 0;
      if (!counting) s.bins[i] = 0;
    }
    __syncthreads();
    for (std::uint32_t page = threadIdx.x; page < keys.pages; page += blockDim.x) {
      const std::uint32_t key = keys.at(page);
      if ((key & mask) == prefix && !(skip_forced && keys.forced(page))) {
        if (counting) atomicAdd(s.counts + ((key >> shift) & 255), 1U);
        if (!counting) atomicAdd(s.bins + ((key >> shift) & 255), weight_of(key));
      }
    }
    __syncthreads();
    if (threadIdx.x < 32 && counting) choose_bin(s, s.counts, target - above);
    if (threadIdx.x < 32 && !counting) choose_bin(s, s.bins, target - above);
    __syncthreads();
    prefix |= s.chosen << shift;
    mask |= 255U << shift;
    above += s.chosen_before;
    // No barrier here: the next use of `chosen` is two barriers away.
  }
  __syncthreads();
  return {prefix, above};
}

/// Writes the chosen pages in ascending order: forced ones, those above the threshold, and the
/// first `equal_places` of those at it. A warp writes a contiguous run of pages.
__device__ void write_list(Scratch& s, const Keys& keys, std::uint32_t threshold,
                           std::uint32_t equal_places, std::uint32_t* list, std::uint32_t* count) {
  const std::uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t run = ((keys.pages + warps - 1) / warps + 31) / 32 * 32;
  const std::uint32_t begin = warp * run;
  const std::uint32_t end = begin + run < keys.pages ? begin + run : keys.pages;
  std::uint32_t above = 0, equal = 0;
  for (std::uint32_t base = begin; base < end; base += 32) {
    const std::uint32_t page = base + lane;
    const bool in = page < end;
    const bool always = in && keys.forced(page);
    const std::uint32_t key = in ? keys.at(page) : 0;
    above += static_cast<std::uint32_t>(__popc(__ballot_sync(~0U, always || key > threshold)));
    equal +=
        static_cast<std::uint32_t>(__popc(__ballot_sync(~0U, in && !always && key == threshold)));
  }
  if (lane == 0) {
    s.warp_above[warp] = above;
    s.warp_equal[warp] = equal;
  }
  __syncthreads();
  std::uint32_t equal_before = 0, place = 0;
  for (std::uint32_t w = 0; w < warp; ++w) {
    const std::uint32_t left = equal_places > equal_before ? equal_places - equal_before : 0;
    place += s.warp_above[w] + (s.warp_equal[w] < left ? s.warp_equal[w] : left);
    equal_before += s.warp_equal[w];
  }
  for (std::uint32_t base = begin; base < end; base += 32) {
    const std::uint32_t page = base + lane;
    const bool in = page < end;
    const bool always = in && keys.forced(page);
    const std::uint32_t key = in ? keys.at(page) : 0;
    const std::uint32_t ties = __ballot_sync(~0U, in && !always && key == threshold);
    const std::uint32_t rank =
        equal_before + static_cast<std::uint32_t>(__popc(ties & ((1U << lane) - 1)));
    const bool tied_in = in && !always && key == threshold && rank < equal_places;
    const bool taken = always || (in && key > threshold) || tied_in;
    const std::uint32_t all = __ballot_sync(~0U, taken);
    if (taken) list[place + static_cast<std::uint32_t>(__popc(all & ((1U << lane) - 1)))] = page;
    place += static_cast<std::uint32_t>(__popc(all));
    equal_before += static_cast<std::uint32_t>(__popc(ties));
  }
  if (warp == warps - 1 && lane == 0) *count = place;
}

__global__ void __launch_bounds__(kMaxThreads)
    select_kernel(StepShape shape, SelectParams p, bool in_shared) {
  extern __shared__ std::uint32_t select_keys[];
  __shared__ Scratch scratch;
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t group = blockIdx.x;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  std::uint32_t* list = p.selection + std::size_t{group} * p.pitch;
  if (pages == 0) {
    if (threadIdx.x == 0) p.counts[group] = 0;
    return;
  }
  Keys keys{p.scores + std::size_t{group} * shape.max_pages, in_shared ? select_keys : nullptr,
            pages, p.sinks, p.recent > 1 ? p.recent : 1};
  if (in_shared) {
    for (std::uint32_t page = threadIdx.x; page < pages; page += blockDim.x) {
      select_keys[page] = key_of(keys.scores[page]);
    }
    __syncthreads();
  }

  std::uint32_t wanted = p.count < pages ? p.count : pages;
  if (p.by == SelectBy::kRatio) {
    const auto exact = static_cast<std::uint32_t>(ceilf(p.ratio * static_cast<float>(pages)));
    wanted = exact < pages ? exact : pages;
  }
  if (p.by == SelectBy::kMass && wanted > 0) {
    // Weights in fixed point, so that sums are the same in any order.
    const float scale = (p.scale != 0.0F ? p.scale : rsqrtf(static_cast<float>(shape.head_dim))) *
                        1.4426950408889634F;
    const auto one = [](std::uint32_t) { return Weight{1}; };
    const Threshold top = find_threshold(scratch, keys, false, 1, true, one);
    const float best = score_of(top.key);
    const auto weight = [&](std::uint32_t key) {
      const float s = score_of(key);
      return s == best ? Weight{1} << 40 : static_cast<Weight>(exp2f((s - best) * scale) * 0x1p40F);
    };
    if (threadIdx.x == 0) scratch.chosen_before = 0;
    __syncthreads();
    Weight own = 0;
    for (std::uint32_t page = threadIdx.x; page < pages; page += blockDim.x)
      own += weight(keys.at(page));
    atomicAdd(&scratch.chosen_before, own);
    __syncthreads();
    const auto target = static_cast<Weight>(static_cast<double>(p.ratio) *
                                            static_cast<double>(scratch.chosen_before));
    __syncthreads();
    if (target == 0) {
      wanted = 0;
    } else {
      const Threshold at = find_threshold(scratch, keys, false, target, false, weight);
      const Weight each = weight(at.key);
      const Weight missing = target > at.above ? target - at.above : 0;
      const Weight ties = each > 0 ? (missing + each - 1) / each : Weight{pages};
      if (threadIdx.x == 0) scratch.chosen = 0;
      __syncthreads();
      std::uint32_t higher = 0, equal = 0;
      for (std::uint32_t page = threadIdx.x; page < pages; page += blockDim.x) {
        higher += keys.at(page) > at.key ? 1 : 0;
        equal += keys.at(page) == at.key ? 1 : 0;
      }
      atomicAdd(&scratch.chosen, higher);
      if (threadIdx.x == 0) scratch.chosen_before = 0;
      __syncthreads();
      atomicAdd(&scratch.chosen_before, Weight{equal});
      __syncthreads();
      const Weight of_equal = ties < scratch.chosen_before ? ties : scratch.chosen_before;
      const Weight reached = scratch.chosen + of_equal;
      wanted = reached < wanted ? static_cast<std::uint32_t>(reached) : wanted;
      __syncthreads();
    }
  }

  const std::uint32_t always = p.sinks + keys.recent < pages ? p.sinks + keys.recent : pages;
  if (wanted < always) wanted = always;
  if (wanted > p.pitch) wanted = p.pitch;
  const std::uint32_t places = wanted - always;
  if (places == 0 || wanted == pages) {  // nothing to choose
    write_list(scratch, keys, wanted == pages ? 0U : ~0U, 0, list, p.counts + group);
    return;
  }
  const Threshold at =
      find_threshold(scratch, keys, true, places, true, [](std::uint32_t) { return Weight{1}; });
  write_list(scratch, keys, at.key, places - static_cast<std::uint32_t>(at.above), list,
             p.counts + group);
}

}  // namespace

Status select_cuda(const StepShape& shape, const SelectParams& params, void* stream) {
  LEHR_TRY(check_select(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const bool in_shared = shape.max_pages <= kMaxKeysShared;
  const std::uint32_t shared = in_shared ? shape.max_pages * 4 : 0;
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(select_kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(kMaxKeysShared * 4)));
  const std::uint32_t threads = shape.max_pages <= 1024 ? 256 : kMaxThreads;
  return cuda::launch(select_kernel, dim3(static_cast<unsigned>(shape.groups())), dim3(threads),
                      shared, s, device.bulk_copy, shape, params, in_shared);
}

}  // namespace lehr::kernels
