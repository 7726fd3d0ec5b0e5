// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "placement/bounds.hpp"
#include "placement/bounds/tick_cost.hpp"

namespace lehr::placement::bounds {

/// LB0, step by step: what a step reads and HBM cannot hold at its start must cross within the
/// step. Each layer takes crossings for free up to the balance of HBM and link; the rest costs link
/// time.
BoundValue water_fill(const Instance& instance, std::span<const TickCost> costs,
                      std::uint32_t warmup_steps);

/// The weights that prove LB0 in the interval bound when `reach` is 1: in a step that overflows
/// HBM, a slot is worth a crossing a step. A larger reach is right where intervals of that many
/// steps fit too.
Weights water_fill_weights(const Instance& instance, std::span<const TickCost> costs, double reach);

}  // namespace lehr::placement::bounds
