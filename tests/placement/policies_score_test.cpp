// SPDX-License-Identifier: Apache-2.0
// Scores against the same formula in floating point; the choice of the coldest against a sort.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/coldest.hpp"
#include "placement/score.hpp"

namespace lehr::placement {
namespace {

TEST_CASE("LogAdder adds what it stands for") {
  const LogAdder add;
  for (std::uint32_t a = 64; a < 3000; a += 37) {
    for (std::uint32_t b = 64; b < 3000; b += 53) {
      const double exact = 64 * std::log2(std::exp2(a / 64.0) + std::exp2(b / 64.0));
      const double got = add(static_cast<LogUnits>(a), static_cast<LogUnits>(b));
      REQUIRE(std::abs(got - exact) <= 1.0);
    }
  }
  CHECK(add(100, 100) == 164);  // twice as much is one doubling more
  CHECK(add(0, 77) == 77);      // 0 is nothing, not one
  CHECK(add(77, 0) == 77);
}

/// 0.6 * share of exposed steps that read the page + 0.4 * importance, in floating point.
double exact_score(double visits, double mass, double peak, double exposed, const ScoreRule& rule) {
  const double most = rule.now + std::min<double>(rule.full, 64 * std::log2(exposed));
  const double frequency = std::min(1.0, std::exp2((visits - most) / 64));
  const double faint = std::clamp(1 - (most - mass) / 1024, 0.0, 1.0);
  const double low = std::clamp(1 - (rule.now - peak) / 1024, 0.0, 1.0);
  return rule.frequency_256 / 256.0 * frequency + rule.importance_256 / 256.0 * (faint + low) / 2;
}

TEST_CASE("score: integers follow the formula within 6 %") {
  Rng rng(11);
  ScoreRule rule;
  rule.now = 5000;
  rule.step = 300;
  rule.full = full_rate(8);
  for (int i = 0; i < 20000; ++i) {
    const auto key = [&] { return static_cast<LogUnits>(3500 + rng.below(1700)); };
    const LogUnits visits = key();
    const LogUnits mass = key();
    const LogUnits peak = key();
    const auto born = static_cast<std::uint16_t>(rng.below(301));
    const double exact = exact_score(visits, mass, peak, 301.0 - born, rule);
    const double got = score_one(visits, mass, peak, born, rule) / 65535.0;
    REQUIRE(std::abs(got - exact) < 0.06);
  }
}

TEST_CASE("score: an importance that somebody else gives stands in the place of the masses") {
  ScoreRule rule;
  rule.now = 5000;
  rule.step = 300;
  rule.full = full_rate(8);
  // The same frequency; 0.4 of the range lies between no importance and all.
  const std::uint16_t none = score_given(4900, 100, 0, rule);
  const std::uint16_t half = score_given(4900, 100, 0.5F, rule);
  const std::uint16_t all = score_given(4900, 100, 1, rule);
  CHECK((half - none) / 65535.0 == Approx(0.2).margin(0.002));
  CHECK((all - none) / 65535.0 == Approx(0.4).margin(0.002));
  CHECK(none == score_one(4900, 0, 0, 100, rule));  // no mass, no importance
  CHECK(score_given(4900, 100, 7, rule) == all);
  CHECK(score_given(4900, 100, -1, rule) == none);
  CHECK(score_given(4900, 100, std::nanf(""), rule) == none);
}

TEST_CASE("score: full marks, none, and what exposure corrects") {
  ScoreRule rule;
  rule.now = 5000;
  rule.step = 400;
  rule.full = full_rate(8);
  CHECK(full_rate(8) == Approx(64 * std::log2(1 / (1 - std::exp2(-0.125)))).margin(0.5));
  const auto always = static_cast<LogUnits>(rule.now + rule.full);
  CHECK(score_one(always, always, 5000, 0, rule) > 65000);
  CHECK(score_one(0, 0, 0, 0, rule) < 20);
  // Read once: a page exposed for one step did all it could, one exposed for hundreds did not.
  const std::uint16_t fresh = score_one(5000, 4000, 4000, 400, rule);
  const std::uint16_t old = score_one(5000, 4000, 4000, 0, rule);
  CHECK(fresh > old);
  // Frequency alone, weight 0.6: one visit among the decayed 12 of a page read always.
  rule.importance_256 = 0;
  CHECK(score_one(5000, 0, 0, 0, rule) / 65535.0 ==
        Approx(0.6 * (1 - std::exp2(-0.125))).epsilon(0.07));
}

TEST_CASE("score: more visits and more mass never score less") {
  ScoreRule rule;
  rule.now = 5000;
  rule.full = full_rate(8);
  rule.step = 100;
  for (LogUnits key = 3000; key < 5200; ++key) {
    const auto next = static_cast<LogUnits>(key + 1);
    REQUIRE(score_one(next, 4500, 4500, 0, rule) >= score_one(key, 4500, 4500, 0, rule));
    REQUIRE(score_one(4500, next, 4500, 0, rule) >= score_one(4500, key, 4500, 0, rule));
    REQUIRE(score_one(4500, 4500, next, 0, rule) >= score_one(4500, 4500, key, 0, rule));
  }
}

TEST_CASE("score: all pages at once equal one at a time", "[differential]") {
  const std::size_t n = GENERATE(0U, 1U, 31U, 64U, 1000U, 4099U);
  Rng rng(n + 1);
  std::vector<std::uint16_t> visits(n), mass(n), peak(n), born(n), out(n);
  for (auto* column : {&visits, &mass, &peak, &born}) {
    for (auto& x : *column) x = static_cast<std::uint16_t>(rng.below(65536));
  }
  ScoreRule rule;
  rule.now = 30000;
  rule.step = 65000;
  rule.full = full_rate(100);
  score_pages({visits, mass, peak, born}, rule, out);
  for (std::size_t i = 0; i < n; ++i) {
    REQUIRE(out[i] == score_one(visits[i], mass[i], peak[i], born[i], rule));
  }
}

std::vector<std::uint32_t> sorted_coldest(const std::vector<std::uint16_t>& scores,
                                          std::size_t count) {
  std::vector<std::uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return scores[a] < scores[b]; });
  order.resize(std::min(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST_CASE("coldest: the same as a sort, ties by index", "[differential]") {
  const std::size_t n = GENERATE(1U, 5U, 64U, 1003U, 20000U);
  const std::uint32_t spread = GENERATE(1U, 3U, 40U, 5000U, 65536U);
  CAPTURE(n, spread);
  Rng rng(n * 31 + spread);
  std::vector<std::uint16_t> scores(n);
  for (auto& s : scores) s = static_cast<std::uint16_t>(65535 - rng.below(spread));
  Coldest coldest;
  std::vector<std::uint32_t> out{7, 7};
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, n / 100, n / 2, n - 1, n, n + 5}) {
    CAPTURE(count);
    coldest.choose(scores, count, out);
    REQUIRE(out == sorted_coldest(scores, count));
  }
}

TEST_CASE("coldest: of nothing comes nothing") {
  Coldest coldest;
  std::vector<std::uint32_t> out{1};
  coldest.choose({}, 3, out);
  CHECK(out.empty());
}

TEST_CASE("quantiles: shares of the scores lie below, to within a bin") {
  std::vector<std::uint16_t> scores(10000);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<std::uint16_t>(6 * i);
  std::array<double, 3> shares{0.0, 0.3, 0.7};
  std::array<std::uint16_t, 3> out{};
  Coldest().quantiles(scores, shares, out);
  CHECK(out[0] < 32);
  CHECK(std::abs(out[1] - 18000) <= 32);
  CHECK(std::abs(out[2] - 42000) <= 32);
}

}  // namespace
}  // namespace lehr::placement
