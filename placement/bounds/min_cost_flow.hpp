// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "placement/bounds.hpp"
#include "placement/bounds/interval_prices.hpp"
#include "placement/bounds/tick_cost.hpp"

namespace lehr::placement::bounds {

/// What pages do at given prices of reads, writes and crossings when the slots of each tick are
/// limited: slots are units that flow along the ticks, and leave that line for a page from the
/// tick in which it is brought or kept to its visit. A minimum-cost flow is integral, so that this
/// is the least cost of any plan, and its potentials are the slot prices that prove it.
struct SlotFlow {
  double cost = 0;          ///< of the cheapest plan, in quanta of the prices
  std::vector<Price> slot;  ///< price of a slot, by tick
};

/// Solves for the prices given (the slot prices are where the search begins; starts are left out),
/// from tick `from` on: earlier ticks cost nothing and hold any number of pages. Promotions are
/// looked for by column generation, `rounds` times at most.
SlotFlow slot_flow(const Instance& instance, const VisitChains& chains, Prices prices, Tick from,
                   std::uint32_t rounds = 2);

/// LB1: the Lagrangian in which only the terms of a tick's time have weights; those given, with the
/// slot prices of the flow.
BoundValue flow_bound(const Instance& instance, std::span<const TickCost> costs,
                      const Weights& weights, const BoundOptions& options);

}  // namespace lehr::placement::bounds
