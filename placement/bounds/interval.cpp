// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/interval.hpp"

#include <algorithm>

#include "placement/bounds/ascent.hpp"
#include "placement/bounds/water_fill.hpp"

namespace lehr::placement::bounds {

namespace {

constexpr double kRate = 0.02;

}  // namespace

BoundValue interval_bound(const Instance& instance, std::span<const TickCost> costs,
                          const BoundOptions& options) {
  const VisitChains chains = visit_chains(instance);
  IntervalPricer all(instance, chains, 1);
  Ascent whole(instance, costs, all, 1, 0);
  std::vector<Window> windows;
  best_windows(instance, costs, options.warmup_steps, &windows);
  const Weights start = window_weights(instance, costs, windows);
  whole.evaluate(start);

  // What does not fit into the budget with all pages is done with a sample of them first.
  const std::uint64_t visits = std::max<std::uint64_t>(1, all.visits());
  const std::uint64_t affordable = options.visit_budget / visits;
  const std::uint32_t rounds = options.rounds;
  if (affordable < rounds) {
    const auto stride =
        static_cast<std::uint32_t>(2 * rounds / std::max<std::uint64_t>(1, affordable) + 1);
    IntervalPricer some(instance, chains, stride);
    Ascent sampled(instance, costs, some, stride, 0);
    sampled.evaluate(whole.best_weights());
    sampled.climb(rounds, kRate);
    whole.evaluate(sampled.best_weights());
  }
  whole.climb(static_cast<std::uint32_t>(std::min<std::uint64_t>(rounds, affordable / 2)), kRate);

  const std::uint64_t warmup = std::uint64_t{options.warmup_steps} * instance.layers;
  const auto from = static_cast<Tick>(std::min<std::uint64_t>(warmup, instance.ticks()));
  Ascent rest(instance, costs, all, 1, from);
  rest.evaluate(whole.best_weights());
  rest.evaluate(start);
  if (from > 0)
    rest.climb(static_cast<std::uint32_t>(std::min<std::uint64_t>(rounds, affordable / 4)), kRate);
  return {"LB2", whole.best(), rest.best()};
}

}  // namespace lehr::placement::bounds
