// SPDX-License-Identifier: Apache-2.0
#include "kernels/boxes.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/quantize.hpp"
#include "kernels/score.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// Values that break careless rounding: extremes, subnormals, zeros of both signs, neighbours.
float adversarial(Rng& rng, DType dtype) {
  static const float odd[] = {0.0F,      -0.0F,           65504.0F, -65504.0F, 0x1p-24F,
                              -0x1p-24F, 1.0F + 0x1p-10F, 0x1p-14F, 1.0F / 3,  -2049.0F,
                              1e-8F,     3e38F,           -3e38F};
  const float x = odd[rng.below(13)];
  return dtype == DType::kF16 && std::fabs(x) > 65504.0F ? gaussian(rng) : x;
}

/// Four full pages and queries of the kinds that break a bound.
Batch adversarial_batch(DType dtype, std::uint64_t seed) {
  Batch b(shape_of(2, 1, 64, 16, 4, dtype), {64}, seed);
  Rng rng(seed * 77);
  for (std::size_t page = 0; page < 4; ++page) {
    for (std::uint32_t t = 0; t < 16; ++t) {
      for (std::uint32_t c = 0; c < 64; ++c) {
        if (rng.below(2) == 0) b.set(page, 0, t, c, adversarial(rng, dtype));
      }
    }
  }
  for (auto& q : b.q) {
    if (rng.below(4) == 0) q = store_16(dtype, rng.below(2) == 0 ? 0.0F : 0x1p-14F);
  }
  return b;
}

/// Its pages in another format; `memory` holds them.
void convert_pages(Batch& b, DType format, std::vector<unsigned char>& memory) {
  memory.resize(4 * 8192 + 128);
  for (std::size_t page = 0; page < 4; ++page) {
    std::uint64_t to =
        (reinterpret_cast<std::uintptr_t>(memory.data()) + 127) / 128 * 128 + page * 8192;
    QuantizeParams qp;
    qp.sources = &b.table[page];
    qp.destinations = &to;
    qp.count = 1;
    qp.to = format;
    REQUIRE(quantize_reference(b.shape, qp));
    b.table[page] = make_entry(to, false, format);
  }
}

}  // namespace

TEST_CASE("no stored key of a page scores above its box, whatever the values") {
  const auto dtype = GENERATE(DType::kF16, DType::kBf16);
  const auto format = GENERATE(DType::kF16, DType::kE4m3, DType::kInt8);
  const auto seed = GENERATE(range(1, 9));
  Batch b = adversarial_batch(dtype, static_cast<std::uint64_t>(seed));
  std::vector<unsigned char> bytes;
  if (format != DType::kF16) convert_pages(b, format, bytes);
  std::vector<std::uint16_t> boxes(4 * 2 * 64);
  BoxesParams bp;
  bp.table = b.table.data();
  bp.lengths = b.lengths.data();
  bp.boxes = boxes.data();
  REQUIRE(boxes_reference(b.shape, bp));
  std::vector<float> scores(4);
  ScoreParams sp;
  sp.q = b.q.data();
  sp.boxes = boxes.data();
  sp.lengths = b.lengths.data();
  sp.scores = scores.data();
  REQUIRE(score_reference(b.shape, sp));
  for (std::size_t page = 0; page < 4; ++page) {
    for (std::uint32_t t = 0; t < 16; ++t) {
      for (std::uint32_t h = 0; h < 2; ++h) {
        double dot = 0;
        for (std::uint32_t c = 0; c < 64; ++c) {
          dot += double{load_16(dtype, b.q[h * 64 + c])} *
                 double{stored_value(page_memory(b.table[page]), entry_format(b.table[page]), 16,
                                     64, 0, t, c)};
        }
        // The float64 sums are in the same order; their own rounding is far below one part in 2^40.
        REQUIRE(dot <= double{scores[page]} + std::fabs(dot) * 0x1p-40);
      }
    }
  }
}

TEST_CASE("control: rounding to nearest instead of outward loses the bound") {
  const float k = 1.0F + 0x1p-12F;  // not an fp16 value: a dequantised key
  CHECK(from_f16(to_f16(k)) < k);
  CHECK(from_f16(store_16_up(DType::kF16, k)) >= k);
}

TEST_CASE("boxes by hand, a NaN opens its channel and no other") {
  Batch b(shape_of(1, 1, 64, 16, 2), {18}, 2);
  b.set(1, 0, 0, 0, 3.0F);
  b.set(1, 0, 1, 0, -5.0F);
  b.set(1, 0, 0, 1, std::nanf(""));
  std::vector<std::uint16_t> boxes(2 * 2 * 64, 0x1234);
  BoxesParams bp;
  bp.table = b.table.data();
  bp.lengths = b.lengths.data();
  bp.boxes = boxes.data();
  REQUIRE(boxes_reference(b.shape, bp));
  CHECK(from_f16(boxes[128]) == -5.0F);
  CHECK(from_f16(boxes[128 + 64]) == 3.0F);
  CHECK(from_f16(boxes[128 + 1]) == -std::numeric_limits<float>::infinity());
  CHECK(from_f16(boxes[128 + 65]) == std::numeric_limits<float>::infinity());
  CHECK(from_f16(boxes[128 + 2]) == std::min(b.get(1, 0, 0, 2), b.get(1, 0, 1, 2)));
}

TEST_CASE("score by hand: the best corner, the maximum over heads, and the centre") {
  StepShape s = shape_of(2, 1, 64, 16, 1);
  s.sequences = 1;
  std::vector<std::uint16_t> q(128, 0), boxes(128, 0);
  const std::uint32_t length = 16;
  q[0] = to_f16(2.0F);
  q[1] = to_f16(-1.0F);
  q[64] = to_f16(1.0F);
  boxes[0] = to_f16(-3.0F);
  boxes[64] = to_f16(1.0F);
  boxes[1] = to_f16(-4.0F);
  boxes[65] = to_f16(6.0F);
  float score = 0;
  ScoreParams p;
  p.q = q.data();
  p.boxes = boxes.data();
  p.lengths = &length;
  p.scores = &score;
  REQUIRE(score_reference(s, p));
  CHECK(score == 6.0F);  // head 0: 2*1 + -1*-4; head 1: 1
  p.spread = 0.0F;
  REQUIRE(score_reference(s, p));
  CHECK(score == -1.0F);  // centres -1 and 1: head 0 -2-1, head 1 -1
  p.spread = 0.5F;
  REQUIRE(score_reference(s, p));
  CHECK(score == 1.5F);  // half-widths 2 and 5: head 0 -3 + 0.5*(4+5), head 1 -1 + 0.5*2
}
