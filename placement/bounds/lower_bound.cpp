// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "placement/bounds.hpp"
#include "placement/bounds/interval.hpp"
#include "placement/bounds/min_cost_flow.hpp"
#include "placement/bounds/tick_cost.hpp"
#include "placement/bounds/water_fill.hpp"

namespace lehr::placement {

Result<Bound> lower_bound(const Instance& instance, const BoundOptions& options) {
  LEHR_TRY(instance.validate());
  const std::vector<bounds::TickCost> costs = bounds::tick_costs(instance);
  Bound out;
  if (options.water_fill) {
    out.each.push_back(bounds::water_fill(instance, costs, options.warmup_steps));
  }
  std::vector<bounds::Window> windows;
  const BoundValue packed = bounds::best_windows(instance, costs, options.warmup_steps, &windows);
  if (options.windows) out.each.push_back(packed);
  if (options.interval) {
    const bounds::Weights start = bounds::window_weights(instance, costs, windows);
    bounds::Weights best;
    const BoundValue interval = bounds::interval_bound(instance, costs, start, options, &best);
    if (options.flow && instance.visit.size() <= options.flow_visits) {
      out.each.push_back(bounds::flow_bound(instance, costs, best, options));
    }
    out.each.push_back(interval);
  }
  for (const BoundValue& value : out.each) {
    if (out.best.name.empty() || value.total > out.best.total) {
      out.best.name = value.name;
      out.best.total = value.total;
    }
    out.best.without_warmup = std::max(out.best.without_warmup, value.without_warmup);
  }
  return out;
}

}  // namespace lehr::placement
