// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "placement/anneal.hpp"
#include "placement/shares.hpp"

namespace lehr::placement {

/// Greedy for the multiple-choice knapsack: of every group one threshold is chosen, HBM is the
/// knapsack. From nothing held on, the group whose next bins save most of the layers' expected time
/// a page gets them, while they fit. A few bins are weighed together: a layer that pays the start
/// of a transfer in any case saves nothing by the first. The expected time of all layers; refuses
/// what ShareAnnealer does. Microseconds for each threshold moved.
Result<Seconds> greedy_shares(std::span<const OddsHistogram> groups, const MissCost& cost,
                              std::uint32_t layers, std::uint64_t capacity,
                              std::vector<Share>& shares);

}  // namespace lehr::placement
