// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/ids.hpp"

namespace lehr {

/// The set of tiers that hold a valid copy of a page: bit i is tier i of the profile.
using Residency = std::uint8_t;

constexpr Residency tier_bit(TierId tier) { return static_cast<Residency>(1U << tier); }
constexpr bool resident(Residency set, TierId tier) { return (set & tier_bit(tier)) != 0; }

}  // namespace lehr
