// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "placement/bounds/interval_prices.hpp"
#include "placement/bounds/tick_cost.hpp"

namespace lehr::placement::bounds {

/// The dual problem of a replay's ticks from `from` on (earlier ones cost nothing and hold any
/// number of pages), with all pages or a sample of them, and the best weights found for it so far.
class Ascent {
 public:
  /// `stride` as the pricer's: the demand of a sample counts that many times. All outlive the
  /// ascent.
  Ascent(const Instance& instance, std::span<const TickCost> costs, IntervalPricer& pricer,
         std::uint32_t stride, Tick from);

  /// The dual value at these weights, rounded down: with all pages, no plan is faster. Kept if it
  /// is the best so far.
  Seconds evaluate(const Weights& weights);

  /// Starts of transfers count from now on; the visits that the pricer has marked share them.
  void count_starts() { starts_ = true; }

  /// Multiplicative steps from the best weights, `rounds` of them, that first go by about `rate`.
  void climb(std::uint32_t rounds, double rate);

  /// Lets the pricer mark what crosses at the best weights.
  void mark_crossings() {
    value(best_weights_);
    pricer_.mark_crossings();
  }

  /// The prices that weights stand for, in whole quanta.
  Prices prices(const Weights& weights) const;
  Seconds quantum() const { return quantum_; }

  Seconds best() const { return best_; }
  const Weights& best_weights() const { return best_weights_; }

 private:
  /// The shares as they are counted: none negative, the sum 1.
  struct Shares {
    double hbm, link, few, floor;
  };
  static Shares shares(const Weights& weights, Tick t);
  Seconds value(const Weights& weights);
  void step(Weights& weights, double rate) const;

  const Instance& instance_;
  std::span<const TickCost> costs_;
  IntervalPricer& pricer_;
  double scale_;
  Tick from_;
  Seconds quantum_;
  bool starts_ = false;
  const Demand* demand_ = nullptr;
  Seconds best_ = 0;  // no time is less
  Weights best_weights_;
};

}  // namespace lehr::placement::bounds
