// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/ascent.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement::bounds {

namespace {

/// Small against a page's cost, large enough that no sum of prices overflows.
Seconds price_quantum(std::span<const TickCost> costs) {
  Seconds largest = 0;
  for (const TickCost& c : costs) largest = std::max({largest, c.hbm.slope, c.link.slope});
  return largest / static_cast<double>(Price{1} << 30);
}

Prices to_prices(std::span<const TickCost> costs, const Weights& weights, Seconds quantum,
                 Tick from) {
  Prices prices;
  prices.resize(static_cast<Tick>(costs.size()));
  for (std::size_t t = from; t < costs.size(); ++t) {
    const double hbm = std::clamp(weights.share[t][0], 0.0, 1.0);
    const double link = std::clamp(weights.share[t][1], 0.0, 1.0 - hbm);
    prices.hbm[t] = static_cast<Price>(hbm * costs[t].hbm.slope / quantum);
    prices.link[t] = static_cast<Price>(link * costs[t].link.slope / quantum);
    const double slot = std::min(weights.slot[t] / quantum, static_cast<double>(Price{1} << 32));
    prices.slot[t] = static_cast<Price>(slot);
  }
  return prices;
}

}  // namespace

Ascent::Ascent(const Instance& instance, std::span<const TickCost> costs, IntervalPricer& pricer,
               std::uint32_t stride, Tick from)
    : instance_(instance),
      costs_(costs),
      pricer_(pricer),
      scale_(stride),
      from_(from),
      quantum_(price_quantum(costs)) {}

Seconds Ascent::value(const Weights& weights) {
  const Prices prices = to_prices(costs_, weights, quantum_, from_);
  demand_ = &pricer_.price(prices);
  double sum = 0;
  double size = 0;  // of what was added, for the rounding of the sum
  const auto add = [&](double x) {
    sum += x;
    size += std::abs(x);
  };
  add(static_cast<double>(demand_->cost) * quantum_ * scale_);
  for (Tick t = from_; t < instance_.ticks(); ++t) {
    const TickCost& c = costs_[t];
    // The shares that the rounded prices stand for; the floor has what they leave.
    const double hbm = static_cast<double>(prices.hbm[t]) * quantum_ / c.hbm.slope;
    const double link = static_cast<double>(prices.link[t]) * quantum_ / c.link.slope;
    add(c.control + std::max(0.0, 1 - hbm - link) * c.floor);
    add(hbm * c.hbm.base);
    add(link * c.link.base);
    const double slots = static_cast<double>(instance_.capacity - instance_.pinned[t]);
    add(-static_cast<double>(prices.slot[t]) * quantum_ * slots);
  }
  return sum - 1e-11 * size;
}

Seconds Ascent::evaluate(const Weights& weights) {
  const Seconds found = value(weights);
  if (found > best_ || best_weights_.slot.empty()) {
    best_ = std::max(found, best_);
    best_weights_ = weights;
  }
  return found;
}

void Ascent::step(Weights& weights, double rate) const {
  for (Tick t = from_; t < instance_.ticks(); ++t) {
    const TickCost& c = costs_[t];
    const double time[3] = {c.hbm.at(scale_ * demand_->hbm[t]),
                            c.link.at(scale_ * demand_->link[t]), c.floor};
    const double top = std::max({time[0], time[1], time[2]});
    if (!(top > 0)) continue;
    double sum = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      double& w = weights.share[t][j];
      w = std::max(w * std::exp(rate * (time[j] - top) / top), 1e-9);
      sum += w;
    }
    for (double& w : weights.share[t]) w /= sum;
    const double slots = std::max<double>(1, instance_.capacity - instance_.pinned[t]);
    const double excess = (scale_ * demand_->slot[t] - slots) / slots;
    weights.slot[t] *= std::exp(rate * std::clamp(excess, -1.0, 1.0));
  }
}

void Ascent::climb(std::uint32_t rounds, double rate) {
  Weights weights = best_weights_;
  // Multiplicative steps never leave zero: start a hair inside, near enough to lose next to
  // nothing.
  constexpr double kInside = 5e-4;
  for (Tick t = from_; t < instance_.ticks(); ++t) {
    for (double& w : weights.share[t]) w = (1 - kInside) * w + kInside / 3;
    weights.slot[t] += 0.2 * kInside * costs_[t].hbm.slope / instance_.layers;
  }
  for (std::uint32_t round = 0; round < rounds; ++round) {
    evaluate(weights);
    step(weights, rate / std::sqrt(1 + 0.1 * round));
  }
}

}  // namespace lehr::placement::bounds
