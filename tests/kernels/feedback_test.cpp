// SPDX-License-Identifier: Apache-2.0
#include "kernels/feedback.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

TEST_CASE("heat by hand: a share of mass, decay by age, and no vote from pages not read") {
  StepShape s = shape_of(2, 1, 64, 16, 4);
  s.sequences = 1;
  const std::uint32_t length = 64, selection[2] = {1, 3}, counts[1] = {2};
  const SoftmaxPair totals[2] = {{3, 2}, {0, 4}};
  // Shares: page 1: 1*2^(2-3)/2 = 0.25 and 1/4; page 3: 0.75 and 0.
  const SoftmaxPair pairs[4] = {
      {2, 1}, {0, 1}, {3, 1.5F}, {-std::numeric_limits<float>::infinity(), 0}};
  alignas(16) PageHeat heat[4] = {{1, 0.5F, 0.5F, 7}, {2, 0.5F, 0.75F, 8}, {}, {}};
  std::uint32_t step = 10;
  FeedbackParams p;
  p.pairs = pairs;
  p.totals = totals;
  p.lengths = &length;
  p.selection = selection;
  p.counts = counts;
  p.selection_pitch = 2;
  p.step = &step;
  p.heat = heat;
  p.decay = 0.5F;
  p.blend = 0.5F;
  REQUIRE(feedback_reference(s, p));
  CHECK(heat[0].step == 7);  // untouched
  CHECK(heat[0].mean == 0.5F);
  CHECK(heat[1].frequency == Approx(2 * 0.25 + 1));  // two steps old
  CHECK(heat[1].mean == Approx(0.375));              // halfway from 0.5 to 0.25
  CHECK(heat[1].peak == Approx(0.25));               // 0.75 / 4 is below the new 0.25
  CHECK(heat[3].frequency == 1.0F);
  CHECK(heat[3].mean == Approx(0.375));  // first sight: (0.75 + 0) / 2
  CHECK(heat[3].peak == Approx(0.75));
  CHECK(heat[3].step == 10);
}

TEST_CASE("a digest by hand: brought up to its step, every so many, nothing past the end") {
  StepShape s = shape_of(1, 1, 64, 16, 4);
  s.sequences = 1;
  const std::uint32_t length = 48;  // three pages
  alignas(16) const PageHeat heat[4] = {
      {4, 0.25F, 0.5F, 6}, {0, 0.5F, 0.5F, 8}, {3, 1, 1e-12F, 8}, {9, 1, 1, 8}};
  const HeatDigest untouched{0x1234, 7, 9};
  HeatDigest digest[4] = {untouched, untouched, untouched, untouched};
  std::uint32_t step = 7;
  HeatDigestParams p;
  p.heat = heat;
  p.lengths = &length;
  p.step = &step;
  p.digest = digest;
  p.every = 4;
  p.decay = 0.5F;
  REQUIRE(heat_digest_reference(s, p));
  CHECK(digest[0].frequency == 0x1234);  // step 7 is no fourth one
  step = 8;
  REQUIRE(heat_digest_reference(s, p));
  CHECK(digest[0].frequency == 0x3C00);  // 4 * 0.5^2 = 1 as fp16
  CHECK(digest[0].mean == 16);           // 2^(-16/8)
  CHECK(digest[0].peak == 24);           // 0.5 * 0.25 = 2^(-24/8)
  CHECK(digest[1].frequency == 0);       // never read: what lies there says nothing
  CHECK(digest[1].mean == 255);
  CHECK(digest[1].peak == 255);
  CHECK(digest[2].mean == 0);
  CHECK(digest[2].peak == 255);  // below the smallest code
  CHECK(digest[3].frequency == 0);
  CHECK(digest[3].mean == 255);
  p.every = 0;
  CHECK_FALSE(heat_digest_reference(s, p));
  p.every = 1;
  p.decay = std::nanf("");
  CHECK_FALSE(heat_digest_reference(s, p));
  p.decay = 0.5F;
  p.digest = nullptr;
  CHECK_FALSE(heat_digest_reference(s, p));
}

TEST_CASE("a NaN in the totals leaves heat finite") {
  StepShape s = shape_of(1, 1, 64, 16, 1);
  s.sequences = 1;
  const std::uint32_t length = 16, step = 1;
  const SoftmaxPair total{std::nanf(""), std::nanf("")}, pair{1, 1};
  alignas(16) PageHeat heat{};
  FeedbackParams p;
  p.pairs = &pair;
  p.totals = &total;
  p.lengths = &length;
  p.step = &step;
  p.heat = &heat;
  REQUIRE(feedback_reference(s, p));
  CHECK(heat.mean == 0.0F);
  CHECK(heat.frequency == 1.0F);
}

TEST_CASE("shares of a real step sum to one") {
  Batch b(shape_of(4, 2, 64, 16, 8), {100, 33}, 17);
  std::vector<SoftmaxPair> pairs(4 * 8 * 2), totals(4 * 2);
  AttendParams ap = b.params();
  ap.pairs = pairs.data();
  ap.totals = totals.data();
  REQUIRE(attend_reference(b.shape, ap));
  std::vector<PageHeat> heat(4 * 8);
  const std::uint32_t step = 3;
  FeedbackParams p;
  p.pairs = pairs.data();
  p.totals = totals.data();
  p.lengths = b.lengths.data();
  p.step = &step;
  p.heat = heat.data();
  REQUIRE(feedback_reference(b.shape, p));
  for (std::size_t g = 0; g < 4; ++g) {
    double sum = 0;
    for (std::size_t page = 0; page < 8; ++page) sum += double{heat[g * 8 + page].mean};
    CHECK(sum == Approx(1.0).epsilon(1e-5));
  }
}
