// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/oracle.hpp"

namespace lehr::placement {

/// Keeps intervals in the order of visits saved per slot and tick, the shortest first, where there
/// is room.
Schedule greedy_density(const Instance& instance, const VisitChains& chains);

/// Sweeps through time and gives up the interval that ends last whenever there are too many: fewest
/// misses, blind to what a miss costs where.
Schedule fewest_misses(const Instance& instance, const VisitChains& chains);

}  // namespace lehr::placement
