// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace lehr::predictors {

inline constexpr float kMostLogit = 12.0F;

/// log(p / (1 - p)), p kept away from 0 and 1.
inline float logit(float p) {
  const float q = std::clamp(p, 1e-5F, 1.0F - 1e-5F);
  return std::log(q / (1.0F - q));
}

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

}  // namespace lehr::predictors
