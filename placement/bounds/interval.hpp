// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "placement/bounds.hpp"
#include "placement/bounds/tick_cost.hpp"

namespace lehr::placement::bounds {

/// LB2: the Lagrangian of the space-time of page intervals. Slots have prices by tick, and a tick's
/// time is replaced by a weighted mean of its three terms; each page then takes its cheapest way.
/// The start of a tick's transfers is shared by the visits that may use it, as facility location
/// shares the cost of opening one. Begins at the weights
/// `start`; `best`, if wanted, are those found without starts.
BoundValue interval_bound(const Instance& instance, std::span<const TickCost> costs,
                          const Weights& start, const BoundOptions& options,
                          Weights* best = nullptr);

}  // namespace lehr::placement::bounds
