// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// Logarithms in 1/64 of a doubling, against a time zero that moves with the decay: what halves
/// every half-life needs no upkeep, it is compared with `now`, which rises by 64 a half-life.
using LogUnits = std::uint16_t;
inline constexpr std::uint32_t kUnitsPerDoubling = 64;

/// log2(2^a + 2^b); 0 stands for nothing.
class LogAdder {
 public:
  LogAdder();
  LogUnits operator()(LogUnits a, LogUnits b) const {
    const LogUnits high = std::max(a, b);
    const LogUnits low = std::min(a, b);
    const std::uint32_t apart = static_cast<std::uint32_t>(high - low);
    return low == 0 || apart >= gain_.size() ? high : static_cast<LogUnits>(high + gain_[apart]);
  }

 private:
  std::array<std::uint8_t, 8 * kUnitsPerDoubling> gain_;
};

/// What scores are made from, a column each, indexed by page (or any dense number).
struct ScoreColumns {
  std::span<const LogUnits> visits;     ///< sum over visits, decayed
  std::span<const LogUnits> mass;       ///< sum over visits of the mean softmax mass, decayed
  std::span<const LogUnits> peak;       ///< largest softmax mass, decayed
  std::span<const std::uint16_t> born;  ///< step since which the page can be read
};

struct ScoreRule {
  std::uint32_t now = 0;              ///< the present, in LogUnits
  std::uint16_t step = 0;             ///< the present step
  std::uint32_t full = 0;             ///< log of the decayed sum of one visit a step for ever
  std::uint32_t frequency_256 = 154;  ///< weight of the frequency, in 1/256
  std::uint32_t importance_256 = 102;
};

/// The sum `full` of a page read at every step, for a half-life in steps.
std::uint32_t full_rate(double half_life);

/// Frequency (share of steps that read the page) and importance (its mass on a logarithmic scale of
/// 16 doublings, mean and peak in equal parts), both corrected for how long the page was exposed;
/// weighted, in [0, 65535]. Integers only, so that every machine gives the same.
inline std::uint16_t score_one(LogUnits visits, LogUnits mass, LogUnits peak, std::uint16_t born,
                               const ScoreRule& rule) {
  const auto now = static_cast<std::int32_t>(rule.now);
  const auto full = static_cast<std::int32_t>(rule.full);
  // A page exposed for n steps can have gathered no more than about n visits: what a float's bits
  // say of log2(n) is exact at powers of two and within 0.09 elsewhere.
  const auto exposed = static_cast<float>(static_cast<std::uint16_t>(rule.step - born)) + 1.0F;
  const std::int32_t log_exposed = (std::bit_cast<std::int32_t>(exposed) >> 17) - 127 * 64;
  const std::int32_t most = now + std::min(full, log_exposed);

  const std::int32_t rare = std::min(std::max(most - visits, 0), 15 * 64);
  const std::int32_t frequency = ((64 + 63 - (rare & 63)) << 9) >> (rare >> 6);

  constexpr std::int32_t kRange = 16 * 64;
  const std::int32_t faint = std::min(std::max(most - mass, 0), kRange);
  const std::int32_t low = std::min(std::max(now - peak, 0), kRange);
  const std::int32_t importance = (2 * kRange - faint - low) * 32;

  const std::int32_t sum = (static_cast<std::int32_t>(rule.frequency_256) * frequency +
                            static_cast<std::int32_t>(rule.importance_256) * importance) >>
                           8;
  return static_cast<std::uint16_t>(std::min(sum, 65535));
}

/// score_one of each page; vectorised, about 1 ns a page and less. All columns as long as `out`.
void score_pages(const ScoreColumns& columns, const ScoreRule& rule, std::span<std::uint16_t> out);

}  // namespace lehr::placement
