// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/interval.hpp"

#include <algorithm>

#include "placement/bounds/ascent.hpp"
#include "placement/bounds/water_fill.hpp"

namespace lehr::placement::bounds {

namespace {

constexpr double kRate = 0.02;
constexpr double kStartRate = 0.2;  // slots are worth more with starts: prices have far to go

std::uint32_t at_most(std::uint32_t rounds, std::uint64_t affordable) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(rounds, affordable));
}

}  // namespace

BoundValue interval_bound(const Instance& instance, std::span<const TickCost> costs,
                          const Weights& start, const BoundOptions& options, Weights* best) {
  const VisitChains chains = visit_chains(instance);
  IntervalPricer all(instance, chains, 1);
  Ascent whole(instance, costs, all, 1, 0);
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
  whole.climb(at_most(rounds / 4, affordable / 6), kRate);

  // Then with the starts of transfers. Pages that cross are marked anew as they change.
  whole.mark_crossings();
  Ascent starting(instance, costs, all, 1, 0);
  starting.count_starts();
  starting.evaluate(whole.best_weights());
  for (const double rate : {kStartRate, kStartRate, kStartRate / 2}) {
    starting.climb(at_most(rounds / 5, affordable / 10), rate);
    starting.mark_crossings();
  }

  const std::uint64_t warmup = std::uint64_t{options.warmup_steps} * instance.layers;
  const auto from = static_cast<Tick>(std::min<std::uint64_t>(warmup, instance.ticks()));
  Ascent rest(instance, costs, all, 1, from);
  rest.evaluate(whole.best_weights());
  rest.evaluate(start);
  Ascent rest_starting(instance, costs, all, 1, from);
  rest_starting.count_starts();
  rest_starting.evaluate(starting.best_weights());
  if (from > 0) {
    const std::uint32_t more = at_most(rounds / 4, affordable / 8);
    if (rest.best() > rest_starting.best()) {
      rest.climb(more, kRate);
    } else {
      rest_starting.climb(more, kStartRate / 2);
    }
  }
  if (best != nullptr) *best = whole.best_weights();
  return {"LB2", std::max(whole.best(), starting.best()),
          std::max(rest.best(), rest_starting.best())};
}

}  // namespace lehr::placement::bounds
