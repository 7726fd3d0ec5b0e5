// SPDX-License-Identifier: Apache-2.0
// Tiers below HBM on links of unequal price: three and four tiers in all, against the optimum found
// by going through every plan.
#include <algorithm>
#include <cmath>
#include <string>

#include <catch2/catch.hpp>

#include "placement/policy.hpp"
#include "tests/support/exact_solver.hpp"

namespace lehr::placement {
namespace {

Seconds played(const test::TinyReplay& replay, const char* name,
               const Parameters& parameters = {}) {
  auto policy = make_policy(name, parameters);
  REQUIRE(policy);
  const test::PlayedReplay run = test::play(replay, **policy);
  CHECK(run.broken == "");
  return run.total;
}

TEST_CASE("Of two pages read alike, HBM holds the one whose tier is dearer to read") {
  // Two layers of one page, one slot beside their tails. Layer 0's page lies on the peer (0.25 s),
  // layer 1's on the host (1 s); HBM reads in 0.1 s. Both are read in every step.
  test::TinyReplay replay = test::unequal_replay(1, 2);
  Instance& in = replay.instance;
  in = {};
  in.platform = replay.platform.get();
  in.page_bytes = 100;
  in.layers = 2;
  in.capacity = 3;
  in.add_page(0, true);
  in.add_page(0, false);
  for (Tick t = 0; t < 20; ++t) {
    in.open_tick(0, 0, 2);
    in.add_visit(t % 2);
  }
  replay.link = {0, 2};
  replay.odds = {0.9F, 0.9F};
  // The best: page 1 takes the slot as it is read for the first time, page 0 is read in place.
  const double best = 0.1 + 1 + 9 * (0.25 + 0.1);
  CHECK(test::exact_optimum(replay) == Approx(best));
  CHECK(played(replay, "table", {{"sinks", 0}}) == Approx(best));
  CHECK(played(replay, "sa", {{"sinks", 0}}) == Approx(best));
  // Controls: whoever takes all misses for alike.
  CHECK(played(replay, "table", {{"sinks", 0}, {"price", 0}}) > 2 * best);
  CHECK(played(replay, "lru") > 1.5 * best);
}

TEST_CASE("No policy beats the optimum over three or four tiers, all keep their contracts") {
  const std::uint32_t below = GENERATE(2U, 3U);
  for (const PolicyDescriptor* descriptor : policies()) {
    if (descriptor->traits.unlimited || descriptor->traits.needs_instance) continue;
    INFO(descriptor->name << ", " << below + 1 << " tiers");
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      INFO("seed " << seed);
      const test::TinyReplay replay = test::unequal_replay(seed, below);
      CHECK(played(replay, descriptor->name) >= test::exact_optimum(replay) * (1 - 1e-12));
    }
  }
}

TEST_CASE("Prices bring table and sa nearer to the optimum than a policy that sees no tiers") {
  const std::uint32_t below = GENERATE(2U, 3U);
  const char* name = GENERATE("table", "sa");
  CAPTURE(below, name);
  double priced = 0;
  double blind = 0;
  double lru = 0;
  int replays = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const test::TinyReplay replay = test::unequal_replay(seed, below);
    const Seconds optimum = test::exact_optimum(replay);
    if (optimum <= 0) continue;
    priced += played(replay, name) / optimum;
    blind += played(replay, name, {{"price", 0}}) / optimum;
    lru += played(replay, "lru") / optimum;
    ++replays;
  }
  CAPTURE(priced / replays, blind / replays, lru / replays);
  CHECK(replays > 150);
  CHECK(priced < 0.95 * blind);
  CHECK(blind < lru);
}

}  // namespace
}  // namespace lehr::placement
