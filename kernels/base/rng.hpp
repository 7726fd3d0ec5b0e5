// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lehr {

/// splitmix64 (Steele, Lea, Flood 2014): the same stream on every machine, unlike <random>'s
/// distributions. Not for secrets.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15ULL); }

  /// Uniform in [0, bound), bound > 0, by multiply-shift; the bias is below 2^-32 for bound < 2^32.
  constexpr std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
  }

  /// Uniform in [0, 1) with 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

}  // namespace lehr
