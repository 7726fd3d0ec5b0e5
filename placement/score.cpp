// SPDX-License-Identifier: Apache-2.0
#include "placement/score.hpp"

#include <cmath>

#include "kernels/base/simd.hpp"

namespace lehr::placement {

LogAdder::LogAdder() {
  for (std::size_t d = 0; d < gain_.size(); ++d) {
    const double doublings = static_cast<double>(d) / kUnitsPerDoubling;
    gain_[d] = static_cast<std::uint8_t>(
        std::lround(kUnitsPerDoubling * std::log2(1.0 + std::exp2(-doublings))));
  }
}

std::uint32_t full_rate(double half_life) {
  const double sum = 1.0 / (1.0 - std::exp2(-1.0 / half_life));
  return static_cast<std::uint32_t>(std::lround(kUnitsPerDoubling * std::log2(sum)));
}

LEHR_VECTOR_CLONES
void score_pages(const ScoreColumns& columns, const ScoreRule& rule, std::span<std::uint16_t> out) {
  const LogUnits* const visits = columns.visits.data();
  const LogUnits* const mass = columns.mass.data();
  const LogUnits* const peak = columns.peak.data();
  const std::uint16_t* const born = columns.born.data();
  std::uint16_t* const to = out.data();
  const std::size_t n = out.size();
  const ScoreRule r = rule;  // a copy, so that stores through `to` cannot be thought to change it
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) to[i] = score_one(visits[i], mass[i], peak[i], born[i], r);
}

}  // namespace lehr::placement
