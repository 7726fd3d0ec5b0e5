// SPDX-License-Identifier: Apache-2.0
#include "placement/division.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lehr::placement {
namespace {

bool usable(const DeviceLoad& load) {
  return load.units > 0 && load.step > 0 && std::isfinite(load.step) && load.hit_rate >= 0 &&
         load.hit_rate <= 1 && load.hbm > 0 && load.link > 0;
}

/// Units that HBM would serve.
double served(const DeviceLoad& load, double units) {
  if (!(load.share > 0)) return std::min(units, load.hit_rate * load.units);
  const double share = load.share * load.units / units;
  if (share >= 1) return units;
  const bool shown = load.share < 1 && load.hit_rate > 0;
  const double a =
      shown ? std::clamp(std::log(load.hit_rate) / std::log(load.share), 0.0, 1.0) : kUnknownFall;
  return units * std::pow(share, a);
}

/// Time of a unit's bytes over those of a byte: only ratios of it count.
double raw(const DeviceLoad& load, double units) {
  const double hits = served(load, units);
  return hits / load.hbm + (units - hits) / load.link;
}

}  // namespace

Result<std::vector<std::uint32_t>> divide(std::uint32_t units, std::span<const double> weights) {
  if (weights.empty() || units < weights.size())
    return invalid("a division needs devices, and a unit for each of them", Reason::kOutOfRange);
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      return invalid("the weight of a device must be positive", Reason::kOutOfRange);
    sum += weight;
  }
  // One each, the rest by weight.
  const auto rest = static_cast<double>(units - weights.size());
  std::vector<std::uint32_t> parts;
  std::vector<double> left;
  for (const double weight : weights) {
    const double exact = rest * (weight / sum);
    parts.push_back(1 + static_cast<std::uint32_t>(exact));
    left.push_back(exact - std::floor(exact));
  }
  std::uint32_t given = std::accumulate(parts.begin(), parts.end(), 0U);
  for (; given < units; ++given) {
    const auto most = std::max_element(left.begin(), left.end());
    ++parts[static_cast<std::size_t>(most - left.begin())];
    *most = -1;
  }
  return parts;
}

Seconds predicted_step(const DeviceLoad& load, std::uint32_t units) {
  if (!usable(load)) return load.step;
  return load.step * raw(load, units) / raw(load, load.units);
}

std::vector<std::uint32_t> rebalanced(std::span<const DeviceLoad> loads,
                                      const RebalanceRule& rule) {
  std::vector<std::uint32_t> now, units;
  std::vector<Seconds> times;
  for (const DeviceLoad& load : loads) {
    now.push_back(load.units);
    times.push_back(load.step);
  }
  if (loads.empty() || !std::all_of(loads.begin(), loads.end(), usable)) return now;
  units = now;
  const Seconds before = *std::max_element(times.begin(), times.end());
  for (std::uint32_t moved = 0; moved < rule.most_units; ++moved) {
    const auto from =
        static_cast<std::size_t>(std::max_element(times.begin(), times.end()) - times.begin());
    if (units[from] == 1) break;
    std::size_t to = from;
    Seconds least = times[from];
    for (std::size_t d = 0; d < loads.size(); ++d) {
      const Seconds time = predicted_step(loads[d], units[d] + 1);
      if (d == from || time >= least) continue;
      to = d;
      least = time;
    }
    if (to == from) break;
    --units[from];
    ++units[to];
    times[from] = predicted_step(loads[from], units[from]);
    times[to] = least;
  }
  const Seconds after = *std::max_element(times.begin(), times.end());
  return after < before * (1 - rule.least_gain) ? units : now;
}

}  // namespace lehr::placement
