// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/detail/cluster.cuh"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/select.hpp"

/// Choosing a group's pages by their scores, by all threads of the group's team. Each CTA holds the
/// keys of a slice of the pages.
namespace lehr::kernels::cuda {

using Weight = unsigned long long;

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

inline constexpr std::uint32_t kMaxSelectWarps = 32;

struct SelectScratch {
  // Two of what other CTAs read, used in turn: one is cleared while they read the other.
  std::uint32_t counts[2][256];  ///< weights of 1: atomics on one word are far cheaper
  Weight bins[2][256];
  Weight sum[2];
  std::uint32_t least[2], greatest[2];
  Weight totals[256];    ///< of the team
  Weight chosen_before;  ///< weight of all keys above the chosen bin
  Weight chosen_in;      ///< of those in it
  std::uint32_t chosen;
  std::uint32_t warp_above[kMaxSelectWarps], warp_equal[kMaxSelectWarps];
  std::uint32_t above, equal;  ///< of this CTA's slice
};

/// This CTA's slice of a group's keys, in shared memory where they fit.
struct Keys {
  const float* scores;          ///< of the whole group
  const std::uint32_t* shared;  ///< of the slice, or null: then scores are read again
  std::uint32_t first, count;   ///< the slice
  std::uint32_t pages;          ///< of the group
  std::uint32_t sinks, recent;

  __device__ bool forced(std::uint32_t page) const {
    return page < sinks || page + recent >= pages;
  }
  __device__ std::uint32_t at(std::uint32_t page) const {
    return shared != nullptr ? shared[page - first] : key_of(scores[page]);
  }
};

class Selector {
 public:
  __device__ Selector(SelectScratch& scratch, const Team& team, const Keys& keys)
      : s(scratch), team_(team), keys_(keys) {
    for (std::uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
      for (std::uint32_t turn = 0; turn < 2; ++turn) s.counts[turn][i] = 0, s.bins[turn][i] = 0;
    }
    if (threadIdx.x < 2) {
      s.sum[threadIdx.x] = 0;
      s.least[threadIdx.x] = ~0U;
      s.greatest[threadIdx.x] = 0;
    }
    __syncthreads();
  }

  /// Writes the list and its length.
  __device__ void run(const StepShape& shape, const SelectParams& p, std::uint32_t* list,
                      std::uint32_t* count) {
    const std::uint32_t pages = keys_.pages;
    std::uint32_t wanted = p.count < pages ? p.count : pages;
    if (p.by == SelectBy::kRatio) {
      const auto exact = static_cast<std::uint32_t>(ceilf(p.ratio * static_cast<float>(pages)));
      wanted = exact < pages ? exact : pages;
    }
    if (p.by == SelectBy::kMass && wanted > 0) wanted = by_mass(shape, p, wanted);
    const std::uint32_t always = p.sinks + keys_.recent < pages ? p.sinks + keys_.recent : pages;
    if (wanted < always) wanted = always;
    if (wanted > p.pitch) wanted = p.pitch;
    const std::uint32_t places = wanted - always;
    if (places == 0 || wanted == pages) {  // nothing to choose
      write_list(wanted == pages ? 0U : ~0U, 0, list, count);
      return;
    }
    const Threshold at =
        find_threshold(true, places, true, [](std::uint32_t) { return Weight{1}; });
    write_list(at.key, places - static_cast<std::uint32_t>(at.above), list, count);
  }

 private:
  struct Threshold {
    std::uint32_t key;  ///< all keys above are in
    Weight above;       ///< their weight
  };

  template <class Visit>
  __device__ void each(Visit&& visit) const {
    for (std::uint32_t i = threadIdx.x; i < keys_.count; i += blockDim.x) {
      visit(keys_.first + i, keys_.at(keys_.first + i));
    }
  }

  /// The sum over the team of what its threads hold; all get it.
  __device__ Weight team_sum(Weight own) {
    for (std::uint32_t d = 16; d > 0; d /= 2) own += __shfl_xor_sync(~0U, own, d);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.sum[sum_turn_], own);
    team_.sync();
    Weight all = 0;
    for (std::uint32_t r = 0; r < team_.size; ++r) all += *team_.of(&s.sum[sum_turn_], r);
    sum_turn_ ^= 1;
    // The other word was last read before the barrier above.
    if (threadIdx.x == 0) s.sum[sum_turn_] = 0;
    __syncthreads();
    return all;
  }

  /// Least and greatest of the team's keys.
  __device__ void range(bool skip_forced, std::uint32_t& least, std::uint32_t& greatest) {
    std::uint32_t low = ~0U, high = 0;
    each([&](std::uint32_t page, std::uint32_t key) {
      if (skip_forced && keys_.forced(page)) return;
      low = key < low ? key : low;
      high = key > high ? key : high;
    });
    low = __reduce_min_sync(~0U, low);
    high = __reduce_max_sync(~0U, high);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&s.least[skip_forced ? 1 : 0], low);
      atomicMax(&s.greatest[skip_forced ? 1 : 0], high);
    }
    team_.sync();
    least = ~0U;
    greatest = 0;
    for (std::uint32_t r = 0; r < team_.size; ++r) {
      const std::uint32_t l = *team_.of(&s.least[skip_forced ? 1 : 0], r);
      const std::uint32_t h = *team_.of(&s.greatest[skip_forced ? 1 : 0], r);
      least = l < least ? l : least;
      greatest = h > greatest ? h : greatest;
    }
  }

  /// The bin in which the running weight, from the top, reaches the target. One warp.
  __device__ void choose_bin(Weight target) {
    const std::uint32_t lane = threadIdx.x;
    Weight own = 0;
    for (std::uint32_t i = 0; i < 8; ++i) own += s.totals[255 - (lane * 8 + i)];
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
    for (std::uint32_t i = 0; i < 7 && before + s.totals[bin] < target; ++i)
      before += s.totals[bin--];
    s.chosen = bin;
    s.chosen_before = before;
    s.chosen_in = s.totals[bin];
  }

  /// The key at which the running weight of keys in falling order reaches `target` (at least 1).
  /// 256 bins over the range of the keys, then over the range of the bin that was hit: real scores
  /// lie close together, and fixed digits would put most of them into few bins.
  template <class WeightOf>
  __device__ Threshold find_threshold(bool skip_forced, Weight target, bool counting,
                                      WeightOf weight_of) {
    std::uint32_t low = 0, high = 0;
    range(skip_forced, low, high);
    Weight above = 0;
    while (true) {
      const std::uint32_t bits =
          32 - static_cast<std::uint32_t>(__clz(static_cast<int>(high - low)));
      const std::uint32_t shift = bits > 8 ? bits - 8 : 0;
      each([&](std::uint32_t page, std::uint32_t key) {
        if (key < low || key > high || (skip_forced && keys_.forced(page))) return;
        if (counting) atomicAdd(&s.counts[turn_][(key - low) >> shift], 1U);
        if (!counting) atomicAdd(&s.bins[turn_][(key - low) >> shift], weight_of(key));
      });
      team_.sync();
      for (std::uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
        Weight sum = 0;
        for (std::uint32_t r = 0; r < team_.size; ++r) {
          sum += counting ? Weight{*team_.of(&s.counts[turn_][i], r)}
                          : *team_.of(&s.bins[turn_][i], r);
        }
        s.totals[i] = sum;
        // Last read before the barrier above.
        s.counts[turn_ ^ 1][i] = 0;
        s.bins[turn_ ^ 1][i] = 0;
      }
      turn_ ^= 1;
      __syncthreads();
      if (threadIdx.x < 32) choose_bin(target - above);
      __syncthreads();
      above += s.chosen_before;
      low += s.chosen << shift;
      const std::uint32_t last = low + ((1U << shift) - 1);
      high = last < high ? last : high;
      const bool all_of_bin = above + s.chosen_in == target;
      const Weight in_bin = s.chosen_in;
      __syncthreads();
      if (all_of_bin) return {low - 1, above + in_bin};  // keys are never 0
      if (shift == 0) return {low, above};
    }
  }

  /// Pages that reach the share of the softmax that their scores promise.
  __device__ std::uint32_t by_mass(const StepShape& shape, const SelectParams& p,
                                   std::uint32_t wanted) {
    // Weights in fixed point, so that sums are the same in any order.
    const float scale = (p.scale != 0.0F ? p.scale : rsqrtf(static_cast<float>(shape.head_dim))) *
                        1.4426950408889634F;
    std::uint32_t least = 0, greatest = 0;
    range(false, least, greatest);
    const float best = score_of(greatest);
    const auto weight = [&](std::uint32_t key) {
      const float score = score_of(key);
      return score == best ? Weight{1} << 40
                           : static_cast<Weight>(exp2f((score - best) * scale) * 0x1p40F);
    };
    Weight own = 0;
    each([&](std::uint32_t, std::uint32_t key) { own += weight(key); });
    const auto target =
        static_cast<Weight>(static_cast<double>(p.ratio) * static_cast<double>(team_sum(own)));
    if (target == 0) return 0;
    const Threshold at = find_threshold(false, target, false, weight);
    const Weight each_weight = weight(at.key);
    const Weight missing = target > at.above ? target - at.above : 0;
    Weight higher = 0, equal = 0;
    each([&](std::uint32_t, std::uint32_t key) {
      higher += key > at.key ? 1 : 0;
      equal += key == at.key ? 1 : 0;
    });
    higher = team_sum(higher);
    equal = team_sum(equal);
    Weight ties = 0;
    if (missing > 0)
      ties = each_weight > 0 ? (missing + each_weight - 1) / each_weight : Weight{keys_.pages};
    const Weight reached = higher + (ties < equal ? ties : equal);
    return reached < wanted ? static_cast<std::uint32_t>(reached) : wanted;
  }

  /// Writes the chosen pages in ascending order: forced ones, those above the threshold, and the
  /// first `equal_places` of those at it. A warp writes a contiguous run of pages.
  __device__ void write_list(std::uint32_t threshold, std::uint32_t equal_places,
                             std::uint32_t* list, std::uint32_t* count) {
    const std::uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::uint32_t run = ((keys_.count + warps - 1) / warps + 31) / 32 * 32;
    const std::uint32_t slice_end = keys_.first + keys_.count;
    const std::uint32_t begin =
        keys_.first + warp * run < slice_end ? keys_.first + warp * run : slice_end;
    const std::uint32_t end = begin + run < slice_end ? begin + run : slice_end;
    struct Vote {
      std::uint32_t above, equal;  ///< ballots
    };
    const auto vote = [&](std::uint32_t page) {
      const bool in = page < end;
      const bool always = in && keys_.forced(page);
      const std::uint32_t key = in ? keys_.at(page) : 0;
      return Vote{__ballot_sync(~0U, always || (in && key > threshold)),
                  __ballot_sync(~0U, in && !always && key == threshold)};
    };
    std::uint32_t above = 0, equal = 0;
    for (std::uint32_t base = begin; base < end; base += 32) {
      const Vote v = vote(base + lane);
      above += static_cast<std::uint32_t>(__popc(v.above));
      equal += static_cast<std::uint32_t>(__popc(v.equal));
    }
    if (lane == 0) {
      s.warp_above[warp] = above;
      s.warp_equal[warp] = equal;
    }
    __syncthreads();
    std::uint32_t place = 0, equal_before = 0;
    const auto pass = [&](std::uint32_t more_above, std::uint32_t more_equal) {
      const std::uint32_t left = equal_places > equal_before ? equal_places - equal_before : 0;
      place += more_above + (more_equal < left ? more_equal : left);
      equal_before += more_equal;
    };
    if (team_.size > 1) {
      if (threadIdx.x == 0) {
        s.above = s.equal = 0;
        for (std::uint32_t w = 0; w < warps; ++w) {
          s.above += s.warp_above[w];
          s.equal += s.warp_equal[w];
        }
      }
      team_.sync();
      for (std::uint32_t r = 0; r < team_.rank; ++r)
        pass(*team_.of(&s.above, r), *team_.of(&s.equal, r));
    }
    for (std::uint32_t w = 0; w < warp; ++w) pass(s.warp_above[w], s.warp_equal[w]);
    for (std::uint32_t base = begin; base < end; base += 32) {
      const Vote v = vote(base + lane);
      const std::uint32_t lower = (1U << lane) - 1, bit = 1U << lane;
      const std::uint32_t rank = equal_before + static_cast<std::uint32_t>(__popc(v.equal & lower));
      const bool taken = (v.above & bit) != 0 || ((v.equal & bit) != 0 && rank < equal_places);
      const std::uint32_t all = __ballot_sync(~0U, taken);
      if (taken) list[place + static_cast<std::uint32_t>(__popc(all & lower))] = base + lane;
      place += static_cast<std::uint32_t>(__popc(all));
      equal_before += static_cast<std::uint32_t>(__popc(v.equal));
    }
    if (team_.rank + 1 == team_.size && warp == warps - 1 && lane == 0) *count = place;
    // Others may still read this CTA's memory.
    if (team_.size > 1) team_.sync();
  }

  SelectScratch& s;
  const Team& team_;
  const Keys& keys_;
  std::uint32_t turn_ = 0, sum_turn_ = 0;
};

}  // namespace lehr::kernels::cuda
