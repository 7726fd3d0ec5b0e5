// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "placement/anneal.hpp"

namespace lehr::placement {

/// A step ahead, as promotions see it: its layers in the order in which they run next.
struct PromotionProblem {
  struct Layer {
    double misses = 0;         ///< expected
    double idle_pages = 0;     ///< that the link can carry beside it
    std::vector<double> odds;  ///< of the pages outside that are wanted for it, the likeliest first
  };
  std::vector<Layer> layers;
  const MissCost* cost = nullptr;  ///< of a layer, by its misses
  Seconds hold = 0;                ///< what a slot is worth for the time of one layer
};

struct PromotionTimesResult {
  Seconds before = 0;  ///< expected time of the step, slots held counted, by the starts given
  Seconds after = 0;   ///< by those found; never above `before`
};

/// Simulated annealing of when the promotions for each layer start. Promotions cross in the order
/// of their starts, over what the layers leave of the link; a page that is there before its layer
/// runs is no miss, and holds a slot from when it crosses.
class PromotionTimes {
 public:
  /// Starts by layer: a layer before its own, by index. Fewer than the layers, or out of range, are
  /// taken as at once. They come back as the best seen; the same problem and seed give the same.
  /// About 1 us a proposal of 30 layers. Refuses a problem without a cost and numbers that are
  /// none.
  Status run(const PromotionProblem& problem, std::uint64_t proposals, std::uint64_t seed,
             std::vector<std::uint32_t>& starts, PromotionTimesResult& result);

  /// The expected time by these starts.
  Seconds time(const PromotionProblem& problem, std::span<const std::uint32_t> starts);

 private:
  std::vector<std::uint32_t> order_;  ///< layers by start
  std::vector<double> saved_;         ///< by layer: misses that do not come
  std::vector<std::uint32_t> best_;
};

}  // namespace lehr::placement
