// SPDX-License-Identifier: Apache-2.0
// When promotions start: expected times by hand, never worse than before, close to the best choice.
#include "placement/promotion_times.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

constexpr Bytes kPage = 16 * kKiB;

PromotionProblem random_problem(std::uint64_t seed, const MissCost& cost, std::uint32_t layers) {
  Rng rng(seed);
  PromotionProblem out;
  out.cost = &cost;
  out.hold = 1e-9;
  for (std::uint32_t l = 0; l < layers; ++l) {
    PromotionProblem::Layer& layer = out.layers.emplace_back();
    layer.misses = 4 + 4 * rng.uniform();
    layer.idle_pages = 3 * rng.uniform();
    for (std::uint32_t i = rng.below(4); i > 0; --i) layer.odds.push_back(rng.uniform());
    std::sort(layer.odds.rbegin(), layer.odds.rend());
  }
  return out;
}

TEST_CASE(
    "Promotion times: what crosses before its layer is no miss, and holds a slot from then on") {
  const MissCost cost(test::small_platform(), kPage, 0);
  PromotionProblem p;
  p.cost = &cost;
  p.hold = 1e-6;
  p.layers = {{2, 1, {}}, {2, 1, {}}, {2, 1, {0.5, 0.25, 0.25}}};
  PromotionTimes times;
  // At once: a page in layer 0, two layers before its own, and one in layer 1; the third is late,
  // though there is room for it beside its own layer.
  CHECK(times.time(p, std::vector<std::uint32_t>{0, 0, 0}) ==
        Approx(2 * cost.at(2) + cost.at(1.25) + 3e-6));
  // From layer 1 on, one page in all.
  CHECK(times.time(p, std::vector<std::uint32_t>{0, 0, 1}) ==
        Approx(2 * cost.at(2) + cost.at(1.5) + 1e-6));
}

TEST_CASE("Promotion times: the layer that starts first has the link") {
  const MissCost cost(test::small_platform(), kPage, 0);
  PromotionProblem p;
  p.cost = &cost;
  p.layers = {{0, 1, {}}, {3, 1, {0.1}}, {3, 0, {1.0}}};
  PromotionTimes times;
  const Seconds one = cost.at(0) + cost.at(2.9) + cost.at(2);
  CHECK(times.time(p, std::vector<std::uint32_t>{0, 0, 0}) == Approx(one));  // both get across
  p.layers[1].idle_pages = 0;
  CHECK(times.time(p, std::vector<std::uint32_t>{0, 0, 0}) ==
        Approx(cost.at(0) + cost.at(2.9) + cost.at(3)));  // the first takes all that there is
}

TEST_CASE("Promotion times: never worse than the starts given, and close to the best of all") {
  const MissCost cost(test::small_platform(), kPage, 0);
  PromotionTimes times;
  double worst = 1;
  std::uint32_t better = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    const PromotionProblem p = random_problem(seed, cost, 5);
    std::vector<std::uint32_t> starts(5, 0);
    Seconds best = HUGE_VAL;
    for (std::uint32_t i = 0; i < 24; ++i) {  // layer l starts in one of l
      const std::vector<std::uint32_t> choice{0, 0, i % 2, i / 2 % 3, i / 6};
      best = std::min(best, times.time(p, choice));
    }
    starts.assign(5, 0);
    PromotionTimesResult result;
    REQUIRE(times.run(p, 400, seed, starts, result));
    CHECK(result.after <= result.before);
    CHECK(result.after == Approx(times.time(p, starts)));
    CHECK(result.after >= best * (1 - 1e-12));
    worst = std::max(worst, result.after / best);
    better += result.after < result.before ? 1 : 0;
    std::vector<std::uint32_t> again(5, 0);
    REQUIRE(times.run(p, 400, seed, again, result));
    CHECK(again == starts);
    for (std::uint64_t few = 1; few < 16; ++few) {  // the walk may end above the best that it saw
      std::vector<std::uint32_t> found(5, 0);
      REQUIRE(times.run(p, few, seed, found, result));
      CHECK(result.after == times.time(p, found));
    }
  }
  CHECK(worst < 1.0001);
  CHECK(better > 3);  // control: there is something to be found
}

TEST_CASE("Promotion times: numbers that are none are refused, starts out of range are at once") {
  const MissCost cost(test::small_platform(), kPage, 0);
  PromotionTimes times;
  PromotionTimesResult result;
  std::vector<std::uint32_t> starts;
  PromotionProblem p = random_problem(1, cost, 4);
  starts = {7, 7, 7, 7};
  REQUIRE(times.run(p, 0, 1, starts, result));
  CHECK(starts == std::vector<std::uint32_t>{0, 0, 0, 0});
  p.layers[2].idle_pages = std::nan("");
  CHECK_FALSE(times.run(p, 10, 1, starts, result));
  p = random_problem(1, cost, 4);
  p.layers[1].odds = {1.5};
  CHECK_FALSE(times.run(p, 10, 1, starts, result));
  p = random_problem(1, cost, 4);
  p.hold = -1;
  CHECK_FALSE(times.run(p, 10, 1, starts, result));
  p.cost = nullptr;
  CHECK_FALSE(times.run(p, 10, 1, starts, result));
}

TEST_CASE("sa with annealed starts keeps the contract, and off it is as without") {
  test::WorldShape shape;
  shape.layers = 6;
  shape.prompt_pages = 30;
  shape.steps = 40;
  shape.selected = 6;
  shape.capacity = 60;
  for (shape.seed = 1; shape.seed <= 4; ++shape.seed) {
    const test::PolicyWorld world(shape);
    const Parameters base{{"proposals", 2000}, {"box", 100}};
    Parameters on = base;
    on["starts"] = 200;
    const test::WorldRun with = world.play("sa", on);
    CHECK(with.broken == "");
    CHECK(with.plan_digest == world.play("sa", on).plan_digest);
    Parameters off = base;
    off["starts"] = 0;
    CHECK(world.play("sa", off).plan_digest == world.play("sa", base).plan_digest);
  }
}

}  // namespace
}  // namespace lehr::placement
