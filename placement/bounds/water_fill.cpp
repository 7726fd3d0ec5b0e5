// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/water_fill.hpp"

#include <algorithm>
#include <limits>

namespace lehr::placement::bounds {

namespace {

struct Balance {
  Seconds time;   ///< the least time of a tick, over all numbers of crossings
  double hidden;  ///< the most crossings that keep it
};

/// Of max(floor, hbm(visits - n), link(n)) over n >= 0: pages read in place relieve HBM until the
/// link is the slower of the two.
Balance balance(const TickCost& cost, double visits) {
  const double meet = (cost.hbm.at(visits) - cost.link.base) / (cost.hbm.slope + cost.link.slope);
  const double n = std::clamp(meet, 0.0, visits);
  const Seconds time = std::max({cost.floor, cost.hbm.at(visits - n), cost.link.at(n)});
  return {time, std::max(0.0, (time - cost.link.base) / cost.link.slope)};
}

struct StepFill {
  Seconds time = 0;
  double excess = 0;                                        ///< crossings that nothing hides
  Seconds slope = std::numeric_limits<double>::infinity();  ///< the least that one of them costs
};

StepFill fill_step(const Instance& instance, std::span<const TickCost> costs, Tick first,
                   Tick end) {
  StepFill out;
  for (Tick t = first; t < end; ++t) {
    const Balance b = balance(costs[t], static_cast<double>(instance.visits_at(t).size()));
    out.time += costs[t].control + b.time;
    out.excess -= b.hidden;
    out.slope = std::min(out.slope, costs[t].link.slope);
    for (const PageId p : instance.visits_at(t)) {
      const bool arises_here = instance.born_in_hbm[p] != 0 && instance.birth[p] >= first;
      out.excess += arises_here ? 0 : 1;
    }
  }
  // Before the first tick nothing is in HBM; what a replay starts with is born there.
  if (first > 0) out.excess -= instance.capacity - instance.pinned[first];
  out.time += std::max(0.0, out.excess) * out.slope;
  return out;
}

}  // namespace

BoundValue water_fill(const Instance& instance, std::span<const TickCost> costs,
                      std::uint32_t warmup_steps) {
  BoundValue out{"LB0", 0, 0};
  const Tick ticks = instance.ticks();
  for (Tick first = 0; first < ticks; first += instance.layers) {
    const Tick end = std::min(ticks, first + instance.layers);
    const Seconds time = fill_step(instance, costs, first, end).time;
    out.total += time;
    if (first / instance.layers >= warmup_steps) out.without_warmup += time;
  }
  // The sums round; their relative error is far below this.
  out.total *= 1 - 1e-10;
  out.without_warmup *= 1 - 1e-10;
  return out;
}

Weights water_fill_weights(const Instance& instance, std::span<const TickCost> costs,
                           double reach) {
  Weights w;
  w.share.resize(costs.size());
  w.slot.resize(costs.size());
  const Tick ticks = instance.ticks();
  for (Tick first = 0; first < ticks; first += instance.layers) {
    const Tick end = std::min(ticks, first + instance.layers);
    const StepFill fill = fill_step(instance, costs, first, end);
    for (Tick t = first; t < end; ++t) {
      const TickCost& c = costs[t];
      const auto visits = static_cast<double>(instance.visits_at(t).size());
      const Seconds time = balance(c, visits).time;
      if (fill.excess > 0) {
        w.share[t] = {0, 1, 0};
        // Each page of the step but the freshly born ones holds its slot in the step's first tick,
        // if any.
        w.slot[t] = t == first ? fill.slope / reach : 0;
      } else {
        // Between HBM and link at their balance; a tick on its floor feels neither.
        const double link = c.hbm.slope / (c.hbm.slope + c.link.slope);
        w.share[t] = time <= c.floor ? std::array<double, 3>{0, 0, 1}
                                     : std::array<double, 3>{1 - link, link, 0};
      }
    }
  }
  return w;
}

}  // namespace lehr::placement::bounds
