// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace lehr {

/// Conversions between float and the small formats, on any host. `to_*` rounds to nearest, ties to
/// even;
/// `*_down` and `*_up` round outward, so that a box never shrinks. NaN stays NaN.

inline float from_f16(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1FU;
  const std::uint32_t fraction = h & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline std::uint16_t to_f16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U)
    return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65520 and above
  if (magnitude < 0x38800000U) {                        // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

inline float from_bf16(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

inline std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// The neighbour above or below of a finite 16-bit float (sign-magnitude order); infinities stay.
inline std::uint16_t next_up_16(std::uint16_t h) {
  if (h == 0x8000U) return 1;  // -0 and +0 are one value
  return static_cast<std::uint16_t>((h & 0x8000U) != 0 ? h - 1U : h + 1U);
}
inline std::uint16_t next_down_16(std::uint16_t h) {
  return static_cast<std::uint16_t>(next_up_16(static_cast<std::uint16_t>(h ^ 0x8000U)) ^ 0x8000U);
}

inline float load_16(DType type, std::uint16_t h) {
  return type == DType::kBf16 ? from_bf16(h) : from_f16(h);
}
inline std::uint16_t store_16(DType type, float x) {
  return type == DType::kBf16 ? to_bf16(x) : to_f16(x);
}
/// The smallest 16-bit value that is not below x, and the largest that is not above it.
inline std::uint16_t store_16_up(DType type, float x) {
  const std::uint16_t h = store_16(type, x);
  return load_16(type, h) < x ? next_up_16(h) : h;
}
inline std::uint16_t store_16_down(DType type, float x) {
  const std::uint16_t h = store_16(type, x);
  return load_16(type, h) > x ? next_down_16(h) : h;
}

inline float from_e4m3(std::uint8_t b) {
  const std::uint32_t exponent = (b >> 3) & 0xFU;
  const std::uint32_t fraction = b & 7U;
  float magnitude = 0;
  if (exponent == 0xF && fraction == 7) {
    magnitude = std::nanf("");
  } else if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-9F;
  } else {
    magnitude =
        std::ldexp(1.0F + static_cast<float>(fraction) / 8.0F, static_cast<int>(exponent) - 7);
  }
  return (b & 0x80U) != 0 ? -magnitude : magnitude;
}

/// Saturates at 448, as the hardware conversion does.
inline std::uint8_t to_e4m3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<std::uint8_t>(sign | 0x7FU);
  if (magnitude >= 448.0F) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < 0x1p-6F) {  // a multiple of 2^-9; eight of them are the smallest normal
    const float steps = std::nearbyint(magnitude * 0x1p9F);
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(steps));
  }
  const std::uint32_t m = bits & 0x7FFFFFFFU;
  const std::uint32_t rounded = m + 0x7FFFFU + ((m >> 20) & 1U);
  const std::uint32_t code = (rounded - (120U << 23)) >> 20;
  return static_cast<std::uint8_t>(sign | (code > 0x7EU ? 0x7EU : code));
}

}  // namespace lehr
