// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/tick_cost.hpp"

#include <algorithm>

namespace lehr::placement::bounds {

namespace {

/// What is not the plan's: compute and the other links.
struct Fixed {
  Seconds compute = 0;
  Seconds links = 0;
  Bytes home_bytes = 0;    ///< on the home link itself
  Bytes shared_bytes = 0;  ///< on a link that shares a medium with it
  double shared_rate = 0;
};

Fixed fixed_part(const Instance& instance, Tick t, LinkId home) {
  const Platform& platform = *instance.platform;
  LayerLoad load;
  load.flops = instance.flops[t];
  Fixed out;
  for (const FixedTransfer& f : instance.transfers_at(t)) {
    if (f.link == home) {
      out.home_bytes += f.load.bytes;
      continue;
    }
    load.link[f.link].bytes += f.load.bytes;
    load.link[f.link].count += f.load.count;
  }
  const LayerTime time = layer_time(platform, load);
  out.compute = time.compute;
  out.links = time.links;
  for (const SharedMedium& s : platform.shared) {
    if (s.first != home && s.second != home) continue;
    const Bytes other = load.link[s.first == home ? s.second : s.first].bytes;
    // Of several media, the one that is busiest without the plan; any would do.
    if (out.shared_rate > 0 && other <= out.shared_bytes) continue;
    out.shared_bytes = other;
    out.shared_rate = s.bytes_per_second;
  }
  return out;
}

}  // namespace

std::vector<TickCost> tick_costs(const Instance& instance) {
  const Platform& platform = *instance.platform;
  const LinkId home = platform.link(platform.home, kHbm);
  const Link& link = platform.links[home];
  const auto page = static_cast<double>(instance.least_bytes());
  const CurveMinorant hbm = CurveMinorant::of_bytes(platform.hbm);
  const CurveMinorant crossing =
      CurveMinorant::of_count(link.curve, instance.least_bytes(), instance.page_bytes);

  std::vector<TickCost> out(instance.ticks());
  for (Tick t = 0; t < instance.ticks(); ++t) {
    TickCost& cost = out[t];
    const Fixed fixed = fixed_part(instance, t, home);
    const auto visits = static_cast<double>(instance.visits_at(t).size());
    cost.control = platform.control_per_layer;
    cost.floor = std::max(fixed.compute, fixed.links);

    const auto fixed_bytes = static_cast<double>(instance.fixed_hbm[t]);
    const Line bytes = hbm.near(fixed_bytes + page * visits);
    cost.hbm = {bytes.at(fixed_bytes), bytes.slope * page};

    // Without a crossing every visit is a hit: the tick then takes at least this long.
    const Seconds all_hits = std::max(cost.floor, cost.hbm.at(visits));
    if (fixed.home_bytes > 0) {
      const double peak = link.curve.peak();
      cost.link = {static_cast<double>(fixed.home_bytes) / peak, page / peak};
      cost.few.line = cost.link;
    } else {
      const double hidden = (all_hits - link.latency) * link.curve.best_for_size(page) / page;
      // The latency is paid from the first crossing on; without any, all_hits stands in.
      const auto line = [&](double crossings) {
        CrossingLine found{crossing.near(crossings), 0};
        const Seconds first = found.line.base + link.latency;
        found.line.base = std::min(first, all_hits);
        found.start = first - found.line.base;
        return found;
      };
      const CrossingLine many = line(std::max(hidden, visits / 2));
      cost.link = many.line;
      cost.start = many.start;
      cost.few = line(1);
    }
    if (fixed.shared_rate > 0) {
      const Line shared{
          static_cast<double>(fixed.shared_bytes + fixed.home_bytes) / fixed.shared_rate,
          page / fixed.shared_rate};
      const double kink = (all_hits - cost.link.base) / cost.link.slope;
      if (shared.at(kink) > all_hits) {
        cost.link = shared;
        cost.start = 0;
        cost.few = {shared, 0};
      }
    }
  }
  return out;
}

}  // namespace lehr::placement::bounds
