// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/oracle.hpp"

namespace lehr::placement {

/// Keeps intervals in the order of visits saved per slot and tick, the shortest first, where there
/// is room.
Schedule greedy_density(const Instance& instance, const VisitChains& chains);

/// Sweeps through time and gives up the interval that ends last whenever there are too many: fewest
/// misses, blind to what a miss costs where. With `block` > 1, what a block of so many ticks misses
/// is promoted in its first: fewer transfers, each of more pages, for links whose start costs most.
Schedule fewest_misses(const Instance& instance, const VisitChains& chains, Tick block = 1);

}  // namespace lehr::placement
