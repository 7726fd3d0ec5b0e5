// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lehr::predictors {

inline constexpr float kMostLogit = 12.0F;

/// e^x for |x| <= 80 within a hundred-thousandth of its value, of additions and multiplications
/// only: loops over it vectorise, and every machine gets the same bits.
inline float exp_of(float x) {
  const float scaled = x * 1.44269504F;
  const float shifted = scaled + 12582912.0F;  // 1.5 * 2^23: rounds to the nearest whole number
  const float whole = shifted - 12582912.0F;
  const float f = (scaled - whole) * 0.693147181F;
  float r = 1.0F / 720.0F;
  r = r * f + 1.0F / 120.0F;
  r = r * f + 1.0F / 24.0F;
  r = r * f + 1.0F / 6.0F;
  r = r * f + 0.5F;
  r = r * f + 1.0F;
  r = r * f + 1.0F;
  const auto power = static_cast<std::int32_t>(whole);
  return r * std::bit_cast<float>((power + 127) << 23);
}

/// 1 / (1 + e^-x) for any number.
inline float sigmoid(float x) {
  return 1.0F / (1.0F + exp_of(std::min(std::max(-x, -40.0F), 40.0F)));
}

/// The natural logarithm of a positive normal number within a few units of its last place, as
/// exp_of() is made.
inline float log_of(float x) {
  constexpr std::int32_t kRootHalf = 0x3F3504F3;
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t power = (bits - kRootHalf) >> 23;
  const float f =
      std::bit_cast<float>(bits - (power << 23)) - 1.0F;  // sqrt(1/2) - 1 to sqrt(2) - 1
  const float s = f / (2.0F + f);
  const float s2 = s * s;
  float r = 1.0F / 9.0F;
  r = r * s2 + 1.0F / 7.0F;
  r = r * s2 + 1.0F / 5.0F;
  r = r * s2 + 1.0F / 3.0F;
  r = r * s2 + 1.0F;
  return static_cast<float>(power) * 0.693147181F + 2.0F * s * r;
}

/// log(p / (1 - p)), p kept away from 0 and 1.
inline float logit(float p) {
  const float q = std::min(std::max(p, 1e-5F), 1.0F - 1e-5F);
  return log_of(q / (1.0F - q));
}

/// The same of a whole column.
void logits_of(const float* odds, std::uint32_t n, float* x);

}  // namespace lehr::predictors
