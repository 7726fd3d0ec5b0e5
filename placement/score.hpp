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

/// Both terms in [0, 65535], by the rule's weights.
inline std::uint16_t blend(std::int32_t frequency, std::int32_t importance, const ScoreRule& rule) {
  const std::int32_t sum = (static_cast<std::int32_t>(rule.frequency_256) * frequency +
                            static_cast<std::int32_t>(rule.importance_256) * importance) >>
                           8;
  return static_cast<std::uint16_t>(std::min(sum, 65535));
}

/// The sum `full` of a page read at every step, for a half-life in steps.
std::uint32_t full_rate(double half_life);

/// The largest decayed sum of visits, in LogUnits, of a page that has been there since `born`.
inline std::int32_t most_visits(std::uint16_t born, const ScoreRule& rule) {
  // A page exposed for n steps can have gathered no more than about n visits: what a float's bits
  // say of log2(n) is exact at powers of two and within 0.09 elsewhere.
  const auto steps = static_cast<float>(static_cast<std::uint16_t>(rule.step - born)) + 1.0F;
  const std::int32_t log_steps = (std::bit_cast<std::int32_t>(steps) >> 17) - 127 * 64;
  return static_cast<std::int32_t>(rule.now) +
         std::min(static_cast<std::int32_t>(rule.full), log_steps);
}

/// Share of steps that read the page, 0 to 65535.
inline std::int32_t frequency_term(LogUnits visits, std::int32_t most) {
  const std::int32_t rare = std::min(std::max(most - visits, 0), 15 * 64);
  return ((64 + 63 - (rare & 63)) << 9) >> (rare >> 6);
}

/// Frequency and importance (its mass on a logarithmic scale of 16 doublings, mean and peak in
/// equal parts), both corrected for how long the page was exposed; weighted, in [0, 65535].
/// Integers only, so that every machine gives the same.
inline std::uint16_t score_one(LogUnits visits, LogUnits mass, LogUnits peak, std::uint16_t born,
                               const ScoreRule& rule) {
  const std::int32_t most = most_visits(born, rule);
  constexpr std::int32_t kRange = 16 * 64;
  const std::int32_t faint = std::min(std::max(most - mass, 0), kRange);
  const std::int32_t low =
      std::min(std::max(static_cast<std::int32_t>(rule.now) - peak, 0), kRange);
  return blend(frequency_term(visits, most), (2 * kRange - faint - low) * 32, rule);
}

/// The same with an importance in [0, 1] that somebody else gives.
inline std::uint16_t score_given(LogUnits visits, std::uint16_t born, float importance,
                                 const ScoreRule& rule) {
  const float kept = importance >= 0 ? std::min(importance, 1.0F) : 0.0F;
  return blend(frequency_term(visits, most_visits(born, rule)),
               static_cast<std::int32_t>(kept * 65535.0F), rule);
}

/// score_one of each page; vectorised, about 1 ns a page and less. All columns as long as `out`.
void score_pages(const ScoreColumns& columns, const ScoreRule& rule, std::span<std::uint16_t> out);

}  // namespace lehr::placement
