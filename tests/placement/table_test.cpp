// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/lowest_keys.hpp"
#include "placement/policy.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

TEST_CASE(
    "LowestKeys agrees with a plain search while keys change, pages come and go, and guards move") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  Rng rng(seed);
  LowestKeys keys;
  constexpr std::uint32_t kPages = 700;
  std::vector<double> truth(kPages, 1e300);
  std::vector<std::uint16_t> guard(kPages, 0);
  for (int round = 0; round < 4000; ++round) {
    const PageId p = rng.below(kPages);
    switch (rng.below(6)) {
      case 0:
        keys.erase(p);
        truth[p] = 1e300;
        break;
      case 1:
        guard[p] = static_cast<std::uint16_t>(rng.below(2));
        break;
      default:
        // With ties, and drifting.
        truth[p] = std::floor(100 * rng.uniform()) - std::floor(static_cast<double>(round) / 100);
        keys.set(p, truth[p]);
    }
    if (round % 7 != 0) continue;
    PageId expected = kNoPage;
    for (PageId q = 0; q < kPages; ++q) {
      if (truth[q] < 1e300 && guard[q] == 0 && (expected == kNoPage || truth[q] < truth[expected]))
        expected = q;
    }
    keys.rewind();
    REQUIRE(keys.lowest(guard) == expected);
    REQUIRE(keys.size() == static_cast<std::uint32_t>(std::count_if(
                               truth.begin(), truth.end(), [](double k) { return k < 1e300; })));
  }
}

std::uint64_t misses(const char* name, const Parameters& parameters,
                     const test::PolicyWorld& world) {
  const test::WorldRun run = world.play(name, parameters);
  REQUIRE(run.broken.empty());
  return run.misses;
}

test::WorldShape tight() {
  test::WorldShape shape;
  shape.sequences = 2;
  shape.layers = 6;
  shape.kv_heads = 2;
  shape.prompt_pages = 40;
  shape.page_tokens = 16;
  shape.steps = 80;
  shape.selected = 8;
  shape.capacity = 150;  // a step reads 192 and the tails
  shape.seed = 3;
  return shape;
}

TEST_CASE(
    "Where a step reads more than HBM holds, table misses less than lru and its own half-blind "
    "forms") {
  const test::PolicyWorld world(tight());
  const std::uint64_t table = misses("table", {}, world);
  CHECK(table < misses("lru", {}, world));
  CHECK(table < misses("table", {{"prefetch", 1}, {"order", 4}}, world));
}

TEST_CASE("The same calls and seed give the same plan, annealed or not") {
  const char* name = GENERATE("table", "sa", "sa-adaptive");
  const test::PolicyWorld world(tight());
  const auto first = world.play(name);
  CHECK(first.broken.empty());
  CHECK(first.plan_digest == world.play(name).plan_digest);
}

TEST_CASE("Without proposals sa is table") {
  const test::PolicyWorld world(tight());
  CHECK(world.play("sa", {{"proposals", 0}}).plan_digest == world.play("table").plan_digest);
}

TEST_CASE("Annealed shares are another plan than table's, and another for another time box") {
  const test::PolicyWorld world(tight());
  const auto table = world.play("table");
  const auto sa = world.play("sa", {{"box", 100}});
  REQUIRE(sa.broken.empty());
  CHECK(sa.plan_digest != table.plan_digest);
  CHECK(sa.plan_digest == world.play("sa", {{"box", 100}}).plan_digest);
  CHECK(world.play("sa", {{"box", 0}}).plan_digest == table.plan_digest);  // control: no time
}

}  // namespace
}  // namespace lehr::placement
