// SPDX-License-Identifier: Apache-2.0
#include "runtime/importance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

namespace lehr::runtime {
namespace {

TEST_CASE("ranks span 0 to 1, whatever the scale, ties share, thresholds mean the same shares") {
  auto made = Importance::create();
  REQUIRE(made);
  std::vector<float> out(5);
  made->rank(std::vector<float>{10, 30, 20, 20, -5}, out);
  CHECK(out == std::vector<float>{0.25F, 1.0F, 0.625F, 0.625F, 0.0F});
  Rng rng(1);
  for (const double scale : {1e-9, 1.0, 1e9}) {
    std::vector<float> raw(1001);
    for (float& r : raw) r = static_cast<float>(scale * std::exp(4 * rng.uniform()));
    std::vector<float> ranks(raw.size());
    made->rank(raw, ranks);
    const auto above = std::count_if(ranks.begin(), ranks.end(), [](float r) { return r > 0.7F; });
    const auto below = std::count_if(ranks.begin(), ranks.end(), [](float r) { return r < 0.3F; });
    CHECK(std::abs(above - 300) <= 1);
    CHECK(std::abs(below - 300) <= 1);
    for (std::size_t i = 0; i < raw.size(); ++i) {  // against a sort
      const auto lower = std::count_if(raw.begin(), raw.end(), [&](float r) { return r < raw[i]; });
      REQUIRE(ranks[i] == Approx(static_cast<double>(lower) / 1000).margin(0.004));
    }
  }
  std::vector<float> one(1);
  made->rank(std::vector<float>{7}, one);
  CHECK(one[0] == 0.5F);
  std::vector<float> equal(3);
  made->rank(std::vector<float>{2, 2, 2}, equal);
  CHECK(equal == std::vector<float>{0.5F, 0.5F, 0.5F});
  made->rank({}, {});
}

TEST_CASE("the cosine falls from the newest to the oldest page, flat at both ends") {
  CHECK(Importance::position_term(PositionDecay::kCosine, 100, 101) == Approx(1));
  CHECK(Importance::position_term(PositionDecay::kCosine, 0, 101) == Approx(0).margin(1e-7));
  CHECK(Importance::position_term(PositionDecay::kCosine, 50, 101) == Approx(0.5));
  CHECK(Importance::position_term(PositionDecay::kCosine, 0, 1) == 1);
  CHECK(Importance::position_term(PositionDecay::kExponential, 100, 101) == Approx(1));
  CHECK(Importance::position_term(PositionDecay::kExponential, 50, 101) == Approx(1.0 / 16));
}

TEST_CASE("as tokens are written the exponential moves recent pages, the cosine hardly") {
  // What a threshold compares against moves by the steepest fall near the tail: pages there cross
  // it to and fro as the context grows. A page of context more, the largest change among the
  // last 16.
  const auto largest_change = [](PositionDecay decay) {
    float most = 0;
    for (std::uint32_t back = 1; back <= 16; ++back) {
      const float before = Importance::position_term(decay, 512 - back, 512);
      const float after = Importance::position_term(decay, 512 - back, 513);
      most = std::max(most, std::abs(after - before));
    }
    return most;
  };
  const float cosine = largest_change(PositionDecay::kCosine);
  const float exponential = largest_change(PositionDecay::kExponential);
  CHECK(cosine < 0.0005F);
  CHECK(exponential > 0.009F);
}

TEST_CASE("terms by hand: masses in octaves, norms, rare tokens, and what is unknown") {
  CHECK(Importance::attention_term(1, 1, 0.5) == Approx(1));
  CHECK(Importance::attention_term(std::exp2(-10.0F), 0, 0) == Approx(0.5));
  CHECK(Importance::attention_term(std::exp2(-10.0F), 1, 0.5) == Approx(0.75));
  CHECK(Importance::attention_term(0, 0, 0.5) == 0);
  CHECK(Importance::saliency_term(1, 0) == Approx(0.5));
  CHECK(Importance::saliency_term(3, 0) == Approx(0.75));
  CHECK(Importance::saliency_term(1, kNumbers) == Approx(0.75));
  CHECK(Importance::saliency_term(1, kNames) == Approx(0.75));
  CHECK(Importance::saliency_term(std::nanf(""), 0) == Approx(0.5));
  auto made = Importance::create();
  REQUIRE(made);
  CHECK(made->weighed({1, 1, 1}) == Approx(1.0));
  CHECK(made->weighed({1, 0, 0}) == Approx(0.4));
  CHECK(made->weighed({0, 1, 0}) == Approx(0.3));
}

TEST_CASE("masses are corrected for exposure: a page read once counts as one read ten times") {
  Heat heat(32);
  heat.grow(2);
  const std::vector<PageId> often{0};
  const std::vector<PageId> once{1};
  const std::vector<MassCode> mass{40};
  for (Step t = 0; t < 10; ++t) heat.read(often, mass, mass, t);
  heat.read(once, mass, mass, 9);
  auto made = Importance::create();
  REQUIRE(made);
  const auto a = made->terms(0, heat, 9, 3, 8, 1, 0);
  const auto b = made->terms(1, heat, 9, 3, 8, 1, 0);
  CHECK(a.attention == Approx(b.attention));
  CHECK(a.attention == Approx(0.75));  // 2^-5
}

TEST_CASE("many pages at once weigh what each does alone") {
  Heat heat(32);
  heat.grow(200);
  Rng rng(4);
  for (Step t = 0; t < 20; ++t) {
    std::vector<PageId> pages;
    std::vector<MassCode> mass;
    std::vector<MassCode> peak;
    for (PageId p = 0; p < 200; ++p) {
      if (rng.uniform() < 0.8) continue;
      pages.push_back(p);
      mass.push_back(static_cast<MassCode>(rng.below(256)));
      peak.push_back(static_cast<MassCode>(rng.below(mass.back() + 1)));
    }
    heat.read(pages, mass, peak, t);
  }
  const double peak_share = GENERATE(0.0, 0.5, 1.0);
  ImportanceOptions options;
  options.peak = peak_share;
  auto made = Importance::create(options);
  REQUIRE(made);
  std::vector<float> position(150);
  std::vector<float> saliency(150);
  for (std::uint32_t i = 0; i < 150; ++i) {
    position[i] = Importance::position_term(PositionDecay::kCosine, i, 151);
    saliency[i] = static_cast<float>(rng.uniform());
  }
  std::vector<float> raw(150);
  made->weigh(40, heat.columns(), 25, position, saliency, raw.data());
  for (PageId i = 0; i < 150; ++i) {
    ImportanceTerms terms = made->terms(40 + i, heat, 25, i, 151, 1, 0);
    terms.saliency = saliency[i];
    CHECK(static_cast<double>(raw[i]) == Approx(made->weighed(terms)).margin(1e-5));
  }
}

TEST_CASE("weights learn which term tells, and bad ones are refused") {
  Rng rng(2);
  auto made = Importance::create();
  REQUIRE(made);
  double first = 0;
  double last = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<ImportanceTerms> terms(64);
    std::vector<std::uint8_t> read(64);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = {static_cast<float>(rng.uniform()), static_cast<float>(rng.uniform()),
                  static_cast<float>(rng.uniform())};
      read[i] = terms[i].saliency > 0.6F ? 1 : 0;  // nothing else matters
    }
    last = made->learn(terms, read, 0.5);
    if (round == 0) first = last;
  }
  CHECK(last < 0.8 * first);
  CHECK(made->weights().saliency > 2 * made->weights().attention);
  CHECK(made->weights().attention + made->weights().position + made->weights().saliency ==
        Approx(1));
  ImportanceOptions bad;
  bad.weights = {0, 0, 0};
  CHECK_FALSE(Importance::create(bad));
  bad.weights = {-1, 1, 1};
  CHECK_FALSE(Importance::create(bad));
  bad.weights = {std::numeric_limits<double>::quiet_NaN(), 1, 1};
  CHECK_FALSE(Importance::create(bad));
  bad.weights = {};
  bad.learn = -1;
  CHECK_FALSE(Importance::create(bad));
  bad.learn = 0;
  bad.peak = 2;
  CHECK_FALSE(Importance::create(bad));
}

}  // namespace
}  // namespace lehr::runtime
