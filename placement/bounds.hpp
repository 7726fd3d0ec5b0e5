// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "placement/instance.hpp"

namespace lehr::placement {

struct BoundOptions {
  bool water_fill = true;              ///< LB0: water-fill of each step
  bool windows = true;                 ///< LBw: packing of intervals, by windows of any length
  bool interval = true;                ///< LB2: Lagrangian of the intervals, from LBw's prices on
  bool flow = true;                    ///< LB1: slot prices by min-cost flow, at LB2's weights
  std::uint64_t flow_visits = 60'000;  ///< LB1 is left out where more are read: time and memory
  std::uint32_t warmup_steps = 16;     ///< left out of `without_warmup`
  std::uint32_t rounds = 80;           ///< of LB2's ascent
  /// Visits that LB2 may price in all, at about 12 ns each.
  std::uint64_t visit_budget = 120'000'000;
};

/// A lower bound on the predicted time of every plan for an instance, prefetching ones included.
/// Sums of T(step, layer) without stalls.
struct BoundValue {
  std::string name;  ///< LB0, LBw, LB1 or LB2
  Seconds total = 0;
  /// Over the steps past the warm-up, whatever HBM holds when they begin.
  Seconds without_warmup = 0;
};

struct Bound {
  BoundValue best;               ///< each figure the largest of its kind; the name is the total's
  std::vector<BoundValue> each;  ///< in the order LB0, LBw, LB1, LB2
};

/// Certified: derived from the model alone and rounded down. Deterministic. Refuses an instance
/// that does not validate.
Result<Bound> lower_bound(const Instance& instance, const BoundOptions& options = {});

}  // namespace lehr::placement
