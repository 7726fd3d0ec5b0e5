// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lehr {

using Bytes = std::uint64_t;
using Seconds = double;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

/// Decimal, as data sheets and link speeds use it.
inline constexpr double kGB = 1e9;

}  // namespace lehr
