// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/ascent.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace lehr::placement::bounds {

namespace {

/// Small against a page's cost, large enough that no sum of prices overflows.
Seconds price_quantum(std::span<const TickCost> costs) {
  Seconds largest = 0;
  for (const TickCost& c : costs) largest = std::max({largest, c.hbm.slope, c.link.slope});
  return largest / static_cast<double>(Price{1} << 30);
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

Ascent::Shares Ascent::shares(const Weights& weights, Tick t) {
  const auto& w = weights.share[t];
  Shares out{};
  out.hbm = std::clamp(w[0], 0.0, 1.0);
  out.link = std::clamp(w[1], 0.0, 1.0 - out.hbm);
  out.few = std::clamp(w[3], 0.0, std::max(0.0, 1.0 - out.hbm - out.link));
  out.floor = std::max(0.0, 1.0 - out.hbm - out.link - out.few);
  return out;
}

/// Rounded down: at lower prices every way costs less, so that the value stays below.
Prices Ascent::prices(const Weights& weights) const {
  Prices out;
  out.resize(static_cast<Tick>(costs_.size()));
  std::vector<Price> start(starts_ ? costs_.size() : 0, 0);
  const auto whole = [&](double seconds) { return static_cast<Price>(seconds / quantum_); };
  for (Tick t = from_; t < costs_.size(); ++t) {
    const TickCost& c = costs_[t];
    const Shares w = shares(weights, t);
    out.hbm[t] = whole(w.hbm * c.hbm.slope);
    out.link[t] = whole(w.link * c.link.slope + w.few * c.few.line.slope);
    const double slot = std::min(weights.slot[t] / quantum_, static_cast<double>(Price{1} << 32));
    out.slot[t] = static_cast<Price>(slot);
    // Of a sample its part.
    if (starts_) start[t] = whole((w.link * c.start + w.few * c.few.start) * (1 - 1e-9) / scale_);
  }
  if (starts_) pricer_.share_starts(start, out);
  return out;
}

Seconds Ascent::value(const Weights& weights) {
  const Prices prices = this->prices(weights);
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
    const Shares w = shares(weights, t);
    add(c.control + w.floor * c.floor);
    add(w.hbm * c.hbm.base);
    add(w.link * c.link.base);
    add(w.few * c.few.line.base);
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
    const double n = scale_ * demand_->link[t];
    const double started = starts_ && n > 0 ? 1 : 0;
    const std::array<double, 4> time = {c.hbm.at(scale_ * demand_->hbm[t]),
                                        c.link.at(n) + started * c.start, c.floor,
                                        c.few.line.at(n) + started * c.few.start};
    const double top = *std::max_element(time.begin(), time.end());
    if (!(top > 0)) continue;
    double sum = 0;
    for (std::size_t j = 0; j < time.size(); ++j) {
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
    for (double& w : weights.share[t]) w = (1 - kInside) * w + kInside / 4;
    weights.slot[t] += 0.2 * kInside * costs_[t].hbm.slope / instance_.layers;
  }
  for (std::uint32_t round = 0; round < rounds; ++round) {
    evaluate(weights);
    step(weights, rate / std::sqrt(1 + 0.1 * round));
  }
}

}  // namespace lehr::placement::bounds
