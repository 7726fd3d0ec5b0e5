// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "placement/bounds.hpp"
#include "placement/bounds/tick_cost.hpp"

namespace lehr::placement::bounds {

/// A stretch of ticks [first, end): what it reads and HBM cannot hold at its start must cross
/// within it. Each tick takes crossings for free up to the balance of HBM and link; the rest costs
/// link time.
struct Window {
  Tick first = 0;
  Tick end = 0;
  Seconds slope =
      0;  ///< the time of a crossing that nothing hides; 0 if there is none in the window
};

/// LB0: each step is a window.
BoundValue water_fill(const Instance& instance, std::span<const TickCost> costs,
                      std::uint32_t warmup_steps);

/// LBw: the windows that prove most, by dynamic programming over all places to cut. Where the link
/// is the bottleneck throughout, a crossing costs the same in every tick, keeping intervals is a
/// flow along the ticks, and cuts are the integral solutions of its dual: the bound is then the
/// exact optimum. `windows`, if wanted, are those of the total.
BoundValue best_windows(const Instance& instance, std::span<const TickCost> costs,
                        std::uint32_t warmup_steps, std::vector<Window>* windows = nullptr);

/// The weights that prove a sum over windows in the interval bound: a slot is worth a crossing in
/// the first tick of a window that overflows.
Weights window_weights(const Instance& instance, std::span<const TickCost> costs,
                       std::span<const Window> windows);

}  // namespace lehr::placement::bounds
