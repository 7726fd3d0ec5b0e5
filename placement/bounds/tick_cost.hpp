// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "placement/bounds/curve_minorant.hpp"
#include "placement/instance.hpp"

namespace lehr::placement::bounds {

/// A tick's time from below, whatever the plan: with k pages read from or written to HBM and n
/// crossings of the home link,
///   T >= control + max(floor, hbm.at(k), link.at(n)).
struct TickCost {
  Seconds control = 0;
  Seconds floor = 0;
  Line hbm;
  Line link;
};
std::vector<TickCost> tick_costs(const Instance& instance);

/// Lagrange weights of a replay: how much of each tick's time each of its three terms stands for,
/// and what a slot is worth.
struct Weights {
  std::vector<std::array<double, 3>> share;  ///< of HBM, link and floor; each >= 0, sum 1
  std::vector<double> slot;                  ///< seconds for a slot held during the tick, >= 0
};

}  // namespace lehr::placement::bounds
