// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/half.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

using namespace lehr;

TEST_CASE("every 16-bit pattern survives a round trip") {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto bits = static_cast<std::uint16_t>(h);
    const float f = from_f16(bits);
    if (std::isnan(f)) {
      REQUIRE(std::isnan(from_f16(to_f16(f))));
    } else {
      REQUIRE(to_f16(f) == bits);
    }
    const float b = from_bf16(bits);
    if (std::isnan(b)) {
      REQUIRE(std::isnan(from_bf16(to_bf16(b))));
    } else {
      REQUIRE(to_bf16(b) == bits);
    }
  }
}

TEST_CASE("fp16 rounds to nearest, ties to even, at the edges") {
  CHECK(to_f16(65504.0F) == 0x7BFF);
  CHECK(to_f16(65519.9F) == 0x7BFF);
  CHECK(to_f16(65520.0F) ==
        0x7C00);  // a tie between the largest value and infinity: even is infinity
  CHECK(to_f16(0x1p-24F) == 1);
  CHECK(to_f16(0x1p-25F) == 0);    // a tie between 0 and the smallest: even is 0
  CHECK(to_f16(0x1.8p-24F) == 2);  // between 1 and 2 steps
  CHECK(to_f16(1.0F + 0x1p-11F) == 0x3C00);
  CHECK(to_f16(1.0F + 0x1.8p-10F) == 0x3C02);
  CHECK(to_f16(-0.0F) == 0x8000);
}

TEST_CASE("outward rounding brackets every float, tightly") {
  Rng rng(7);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
    if (std::isnan(x)) continue;
    for (const DType type : {DType::kF16, DType::kBf16}) {
      const std::uint16_t up = store_16_up(type, x);
      const std::uint16_t down = store_16_down(type, x);
      REQUIRE(load_16(type, up) >= x);
      REQUIRE(load_16(type, down) <= x);
      // Nothing lies between the two but x itself.
      if (load_16(type, up) != x) REQUIRE(load_16(type, next_up_16(down)) == load_16(type, up));
    }
  }
}

TEST_CASE("every e4m3 pattern survives a round trip, and values saturate") {
  for (std::uint32_t b = 0; b < 256; ++b) {
    const auto bits = static_cast<std::uint8_t>(b);
    const float f = from_e4m3(bits);
    if (std::isnan(f)) continue;
    CHECK(to_e4m3(f) == bits);
  }
  CHECK(from_e4m3(0x7E) == 448.0F);
  CHECK(from_e4m3(0x01) == 0x1p-9F);
  CHECK(to_e4m3(1e9F) == 0x7E);
  CHECK(to_e4m3(-std::numeric_limits<float>::infinity()) == 0xFE);
  CHECK(std::isnan(from_e4m3(to_e4m3(std::nanf("")))));
  // The nearest of all codes, by search, and the even one of a tie.
  Rng rng(11);
  for (int i = 0; i < 20000; ++i) {
    const float x = static_cast<float>((rng.uniform() - 0.5) * std::exp2(20 * rng.uniform() - 11));
    const float got = from_e4m3(to_e4m3(x));
    for (std::uint32_t b = 0; b < 256; ++b) {
      const float other = from_e4m3(static_cast<std::uint8_t>(b));
      if (!std::isnan(other)) REQUIRE(std::fabs(got - x) <= std::fabs(other - x));
    }
  }
}
