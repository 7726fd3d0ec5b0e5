// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "placement/bounds/curve_minorant.hpp"
#include "placement/instance.hpp"

namespace lehr::placement::bounds {

/// Crossings of the home link from below: with n of them at least n * slope + base, and `start`
/// more if n > 0.
struct CrossingLine {
  Line line;
  Seconds start = 0;  ///< what the first crossing costs beside the slope
};

/// A tick's time from below, whatever the plan: with k pages read from or written to HBM and n
/// crossings of the home link,
///   T >= control + max(floor, hbm.at(k), link.at(n), few.line.at(n), ...), with the starts.
struct TickCost {
  Seconds control = 0;
  Seconds floor = 0;
  Line hbm;
  Line link;          ///< highest near as many crossings as hide, or half of what is read
  Seconds start = 0;  ///< of it, if n > 0
  CrossingLine few;   ///< highest near a single crossing
};
std::vector<TickCost> tick_costs(const Instance& instance);

/// Lagrange weights of a replay: how much of each tick's time each of its terms stands for, and
/// what a slot is worth.
struct Weights {
  std::vector<std::array<double, 4>> share;  ///< of HBM, link, floor and few; each >= 0, sum 1
  std::vector<double> slot;                  ///< seconds for a slot held during the tick, >= 0
};

}  // namespace lehr::placement::bounds
