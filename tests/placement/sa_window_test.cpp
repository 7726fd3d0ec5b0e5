// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/sa_window.hpp"

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/bounds.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

const Platform& platform() {
  static const Platform p = test::small_platform();
  return p;
}

Instance empty(std::uint32_t layers, std::uint32_t capacity) {
  Instance out;
  out.platform = &platform();
  out.layers = layers;
  out.capacity = capacity;
  out.page_bytes = 16 * kKiB;
  return out;
}

Instance random_instance(std::uint64_t seed, std::uint32_t steps) {
  Rng rng(seed);
  Instance out = empty(2, 6);
  for (int p = 0; p < 16; ++p) out.add_page(0, p < 6);
  for (Tick t = 0; t < 2 * steps; ++t) {
    out.open_tick(1000, 0, 0);
    for (PageId p = 0; p < 16; ++p) {
      if (p % 2 == t % 2 && rng.uniform() < 1.0 / (1 + p / 2)) out.add_visit(p);
    }
  }
  return out;
}

TEST_CASE("Static keeps what HBM held at the start, reactive has a page after its first miss") {
  Instance in = empty(1, 1);
  in.add_page(0, true);
  in.add_page(0, false);
  for (int t = 0; t < 4; ++t) {
    in.open_tick(0, 0, 0);
    in.add_visit(1);
  }
  const auto fixed = scheme_time(in, Scheme::kStatic, {}, 0);
  REQUIRE(fixed);
  CHECK(fixed->misses == 4);
  const auto reactive = scheme_time(in, Scheme::kReactive, {}, 0);
  REQUIRE(reactive);
  CHECK(reactive->misses == 1);
  CHECK(reactive->total < fixed->total);
}

TEST_CASE(
    "The window scheme moves in the first step what the next steps read, and its crossing is "
    "paid") {
  Instance in = empty(1, 1);
  in.add_page(0, true);
  in.add_page(0, false);
  for (int t = 0; t < 4; ++t) {
    in.open_tick(0, 0, 0);
    in.add_visit(1);
  }
  const auto all = scheme_time(in, Scheme::kWindow, {4, 1.0}, 0);
  REQUIRE(all);
  CHECK(all->misses == 1);  // the move goes beside the first step's reads
  const auto none = scheme_time(in, Scheme::kWindow, {4, 0.0}, 0);
  REQUIRE(none);
  CHECK(none->misses == 4);  // control: no share, no move
}

TEST_CASE("LB <= annealed window <= the choice that it began with, the same seed gives the same") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 11));
  const Instance in = random_instance(seed, 20);
  WindowOptions options;
  options.seed = seed;
  options.warmup_steps = 0;
  const auto plan = anneal_window(in, options);
  REQUIRE(plan);
  CHECK(plan->time.total <= plan->before);
  CHECK(plan->evaluations <= options.most);
  BoundOptions bound_options;
  bound_options.warmup_steps = 0;
  const auto bound = lower_bound(in, bound_options);
  REQUIRE(bound);
  for (const Scheme s : {Scheme::kStatic, Scheme::kReactive, Scheme::kPage}) {
    const auto time = scheme_time(in, s, {}, 0);
    REQUIRE(time);
    CHECK(time->total >= bound->best.total * (1 - 1e-12));
  }
  CHECK(plan->time.total >= bound->best.total * (1 - 1e-12));
  const auto again = anneal_window(in, options);
  REQUIRE(again);
  CHECK(again->choice.window == plan->choice.window);
  CHECK(again->choice.share == plan->choice.share);
}

TEST_CASE("A window longer than the trace counts as its length") {
  const Instance in = random_instance(3, 10);
  const auto longer = scheme_time(in, Scheme::kWindow, {1'000'000, 0.5}, 0);
  const auto exact = scheme_time(in, Scheme::kWindow, {10, 0.5}, 0);
  REQUIRE(longer);
  REQUIRE(exact);
  CHECK(longer->total == exact->total);
}

TEST_CASE("Refused: no window, a share out of range, less HBM than is pinned") {
  Instance in = random_instance(3, 10);
  CHECK(scheme_time(in, Scheme::kWindow, {1, 1.0}, 0));  // control
  CHECK_FALSE(scheme_time(in, Scheme::kWindow, {0, 0.5}, 0));
  CHECK_FALSE(scheme_time(in, Scheme::kWindow, {1, 1.5}, 0));
  in.pinned.back() = 7;
  const auto refusal = scheme_time(in, Scheme::kWindow, {1, 1.0}, 0);
  REQUIRE_FALSE(refusal);
  CHECK_FALSE(refusal.error().what.empty());
  CHECK_FALSE(anneal_window(in));
}

}  // namespace
}  // namespace lehr::placement
