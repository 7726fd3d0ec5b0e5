// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/bounds.hpp"
#include "placement/window_scheme.hpp"
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
      const PageId pair = p / 2;  // the further, the rarer
      if (p % 2 == t % 2 && rng.uniform() * (1 + pair) < 1.0) out.add_visit(p);
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

/// A world's replay as the instance that full knowledge is: its pages under the world's numbers.
Instance instance_of(const test::PolicyWorld& world, const test::WorldShape& shape) {
  const PolicyContext context = world.context();
  Instance out;
  out.platform = context.platform;
  out.capacity = shape.capacity;
  out.page_bytes = context.page_bytes;
  out.layers = shape.layers;
  const std::uint32_t groups = shape.layers * shape.sequences * shape.kv_heads;
  const std::uint32_t a_group = world.page(0, 0, 0, 0) == 0 && groups > 1
                                    ? shape.prompt_pages + shape.steps / shape.page_tokens + 2
                                    : 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const std::uint32_t layer = g / (shape.sequences * shape.kv_heads);
    for (std::uint32_t i = 0; i < a_group; ++i) {
      const bool prompt = i < shape.prompt_pages;
      const std::uint32_t step = prompt ? 0 : (i - shape.prompt_pages + 1) * shape.page_tokens;
      out.add_page(prompt ? 0 : step * shape.layers + layer, !prompt);
      out.name.push_back({g / shape.kv_heads % shape.sequences, static_cast<std::uint16_t>(layer),
                          static_cast<std::uint16_t>(g % shape.kv_heads), i});
    }
  }
  std::uint32_t room = shape.capacity - groups;
  for (std::uint32_t i = shape.prompt_pages; i-- > 0;) {
    for (std::uint32_t g = 0; g < groups && room > 0; ++g, --room) {
      out.born_in_hbm[g * a_group + i] = 1;
    }
  }
  for (const auto& reads : world.reads()) {
    out.open_tick(1000, 0, groups);
    for (const PageId p : reads) out.add_visit(p);
  }
  return out;
}

/// Tells the policy what follows.
class Knowing final : public Policy {
 public:
  Knowing(std::unique_ptr<Policy> policy, const Instance& future)
      : policy_(std::move(policy)), future_(future) {}
  void begin(const PolicyContext& context) override {
    PolicyContext told = context;
    told.future = &future_;
    policy_->begin(told);
  }
  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override {
    policy_->add_pages(pages, first_use, columns);
  }
  void remove_pages(std::span<const PageId> pages) override { policy_->remove_pages(pages); }
  void decide(const LayerView& view, LayerPlan& plan) override { policy_->decide(view, plan); }

 private:
  std::unique_ptr<Policy> policy_;
  const Instance& future_;
};

TEST_CASE("sa-window in the step loop keeps the contract and does what its scheme does") {
  std::uint64_t promotions = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    test::WorldShape shape;
    shape.sequences = 1 + static_cast<std::uint32_t>(seed % 3);
    shape.layers = 3;
    shape.kv_heads = 2;
    shape.prompt_pages = 14;
    shape.steps = 40;
    shape.selected = 4;
    shape.capacity = 6 * shape.sequences * 5;
    shape.pinned = seed % 4 == 3 ? 0.1 : 0;
    shape.seed = seed;
    const test::PolicyWorld world(shape);
    const Instance in = instance_of(world, shape);
    REQUIRE(in.validate());
    Knowing policy(*make_policy("sa-window", {}), in);
    const test::WorldRun run = world.play(policy);
    CHECK(run.broken == "");
    promotions += run.promotions;
    // Control: without the future it keeps what came first.
    const test::WorldRun blind = world.play("sa-window");
    CHECK(blind.broken == "");
    CHECK(blind.plan_digest == world.play("static").plan_digest);
    CHECK(run.misses < blind.misses);
    if (shape.pinned > 0) continue;
    WindowOptions options;
    options.seed = shape.seed;
    options.most = 24;
    options.warmup_steps = 0;
    const auto plan = anneal_window(in, options);
    REQUIRE(plan);
    const auto misses = static_cast<double>(plan->time.misses);
    CHECK(static_cast<double>(run.misses) < 1.1 * misses);
    CHECK(static_cast<double>(run.misses) > 0.9 * misses);
    CHECK(world.play(policy).plan_digest == run.plan_digest);
  }
  CHECK(promotions > 100);
}

}  // namespace
}  // namespace lehr::placement
