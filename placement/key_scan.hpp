// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

inline constexpr std::uint32_t kScanPages = 64;

/// Pages side by side: kScanPages rows of each column.
struct ScanColumns {
  const float* odds;
  const std::uint8_t* inside;  ///< 1: in HBM
  const Step* last_read;
};

/// Which pages are looked for, by odds x weight + recency: in HBM those of `inside_most` and below,
/// outside those of `outside_least` and above whose odds are `least_odds` at least.
struct ScanRule {
  Step now = 0;
  float weight = 1;
  float recency = 0;  ///< of a read n steps ago: recency / (2 + n)
  float inside_most = 0;
  float outside_least = 0;
  float least_odds = 0;
};

struct ScanFound {
  std::uint64_t pages = 0;  ///< a bit each
  float odds_outside = 0;   ///< their sum; the same on every machine
};

/// About half a nanosecond a page. Odds count in [0, 1]; what is no number counts as 0.
ScanFound scan_pages(const ScanColumns& columns, const ScanRule& rule);

/// Whether pages[i] is pages[0] + i for all of them.
bool side_by_side(const PageId* pages, std::uint32_t count);

}  // namespace lehr::placement
