// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

/// KV over several devices that all serve: which of its units (KV heads, layers, blocks of tokens)
/// each of them holds, and when that should change. Pure.
namespace lehr::placement {

/// Units of each device in proportion to its weight, by largest remainder (ties to the first); each
/// has one at least. Refused where there are fewer units than devices, or a weight is not positive.
Result<std::vector<std::uint32_t>> divide(std::uint32_t units, std::span<const double> weights);

/// What a device showed in the last steps.
struct DeviceLoad {
  std::uint32_t units = 0;
  Seconds step = 0;     ///< of its part of a step
  double hit_rate = 1;  ///< of its reads, by bytes: in HBM
  double hbm = 0;       ///< bytes/s at which it reads HBM,
  double link = 0;      ///< and what does not lie there
  double share = 0;     ///< of its units' bytes that its HBM could hold, may be over 1; 0: unknown
};

inline constexpr double kUnknownFall = 0.25;  ///< recorded traces showed 0.03 to 0.2

/// Its part of a step if it had `units` instead. Where its share is unknown, what its HBM serves
/// now it would go on serving as far as there is as much, and the rest comes over the link. Else
/// hits follow share^a through the point that it showed, with 0 <= a <= 1: the first pages of an
/// HBM are hit most. Where all of its units fit now, nothing shows what a smaller share would do: a
/// = kUnknownFall. Rises with `units`, ever faster.
Seconds predicted_step(const DeviceLoad& load, std::uint32_t units);

struct RebalanceRule {
  std::uint32_t most_units = 1;  ///< that change device at once
  double least_gain = 0.05;      ///< of the slowest part's time; below it nothing changes
};
/// Units of each device after the moves that shorten the slowest part most. Their sum stays, each
/// device keeps one at least, and no part becomes slower than the slowest was. Nothing changes
/// where a load cannot be (no units or no time, a rate that is not positive).
std::vector<std::uint32_t> rebalanced(std::span<const DeviceLoad> loads, const RebalanceRule& rule);

}  // namespace lehr::placement
