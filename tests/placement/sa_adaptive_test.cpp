// SPDX-License-Identifier: Apache-2.0
// The published constants of sa-adaptive, its presets, and its window.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "placement/policy.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

test::WorldShape shape_of(std::uint32_t steps) {
  test::WorldShape shape;
  shape.layers = 3;
  shape.kv_heads = 2;
  shape.prompt_pages = 60;
  shape.page_tokens = 64;
  shape.steps = steps;
  shape.capacity = 100;
  return shape;
}

/// Each page of a run of twelve is read for some 24 steps; the run moves on by one every two steps.
test::PolicyWorld drifting() {
  const test::WorldShape shape = shape_of(160);
  test::PolicyWorld world(shape);
  std::vector<std::vector<PageId>> reads;
  for (std::uint32_t step = 0; step < shape.steps; ++step) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      reads.emplace_back();
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        for (std::uint32_t i = 0; i < 12; ++i) {
          // Half of them, in turn, so that counts over few steps are rough.
          if ((i * 7 + step * 5) % 4 < 2) continue;
          reads.back().push_back(world.page(layer, 0, head, (step / 2 + i) % 60));
        }
      }
      std::sort(reads.back().begin(), reads.back().end());
    }
  }
  world.set_reads(std::move(reads));
  return world;
}

TEST_CASE("sa-adaptive: the published constants are the defaults of its parameters") {
  const auto descriptor = find_policy("sa-adaptive");
  REQUIRE(descriptor);
  std::map<std::string, double> fallback;
  for (const ParameterInfo& p : (*descriptor)->parameters) fallback[p.name] = p.fallback;
  CHECK(fallback["window"] == 50);
  CHECK(fallback["window-step"] == 10);
  CHECK(fallback["window-least"] == 20);
  CHECK(fallback["window-most"] == 100);
  CHECK(fallback["temperature"] == 0.2);
  CHECK(fallback["cooling"] == 0.85);
  CHECK(fallback["cooling-every"] == 100);
  CHECK(fallback["least-gain"] == 0.001);
  CHECK(fallback["patience"] == 30);
}

TEST_CASE("sa-adaptive: a preset is the constants that it names") {
  const test::PolicyWorld world = drifting();
  const auto plan = [&world](const Parameters& p) {
    const test::WorldRun run = world.play("sa-adaptive", p);
    CHECK(run.broken.empty());
    return run.plan_digest;
  };
  CHECK(plan({{"chat", 1}}) == plan({{"window-least", 30}, {"window-most", 50}}));
  CHECK(plan({{"code", 1}}) == plan({{"window-least", 80}, {"window-most", 120}}));
  CHECK(plan({{"high-bandwidth", 1}}) == plan({{"share", 0.8}}));
  CHECK(plan({{"low-bandwidth", 1}}) == plan({{"share", 0.5}}));
  // A workload's and a machine's go together.
  CHECK(plan({{"code", 1}, {"low-bandwidth", 1}}) ==
        plan({{"window-least", 80}, {"window-most", 120}, {"share", 0.5}}));
  CHECK(plan({{"chat", 1}}) != plan({{"code", 1}}));  // control: they do differ
  // It stands above what it names, and of two the later does.
  CHECK(plan({{"code", 1}, {"window-most", 90}, {"chat", 1}}) == plan({{"code", 1}}));
  CHECK(plan({{"low-bandwidth", 1}, {"share", 1}, {"high-bandwidth", 1}}) ==
        plan({{"low-bandwidth", 1}}));
}

TEST_CASE("sa-adaptive: the window follows what hits more") {
  const test::PolicyWorld world = drifting();
  const auto misses = [&world](const Parameters& p) { return world.play("sa-adaptive", p).misses; };
  const std::uint64_t adapts = misses({});
  CHECK(adapts < misses({{"window", 100}, {"window-step", 0}}));
  CHECK(adapts < misses({{"window-step", 0}}));  // control: at its start it stays
}

TEST_CASE("sa-adaptive: a window longer than the run is no error") {
  const test::PolicyWorld world(shape_of(6));
  const test::WorldRun run =
      world.play("sa-adaptive", {{"window", 128}, {"window-least", 128}, {"window-most", 128}});
  CHECK(run.broken.empty());
  CHECK(run.visits > 0);
}

}  // namespace
}  // namespace lehr::placement
