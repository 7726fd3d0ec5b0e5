// SPDX-License-Identifier: Apache-2.0
// Every registered policy keeps the contract of Policy::decide, in worlds that are tight, cold,
// pinned, tiny and crowded. The world checks each plan before it applies it.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "placement/policy.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

using test::PolicyWorld;
using test::WorldRun;
using test::WorldShape;

std::unique_ptr<Policy> fresh(const std::string& name) {
  auto made = make_policy(name, {});
  REQUIRE(made);
  return std::move(*made);
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const PolicyDescriptor* d : policies()) out.emplace_back(d->name);
  return out;
}

WorldShape shaped(std::uint32_t sequences, std::uint32_t layers, std::uint32_t heads,
                  std::uint32_t prompt, std::uint32_t selected, std::uint32_t capacity) {
  WorldShape s;
  s.sequences = sequences;
  s.layers = layers;
  s.kv_heads = heads;
  s.prompt_pages = prompt;
  s.selected = selected;
  s.capacity = capacity;
  return s;
}

std::vector<WorldShape> worlds() {
  std::vector<WorldShape> out;
  out.push_back(shaped(1, 2, 1, 8, 3, 8));
  out.push_back(shaped(1, 1, 1, 1, 1, 2));      // one page
  out.push_back(shaped(2, 3, 2, 12, 4, 40));    // tight: less than one step's selection
  out.push_back(shaped(2, 3, 2, 12, 30, 110));  // all pages read: one layer and the tails fit
  out.push_back(shaped(3, 4, 1, 20, 5, 200));   // roomy
  out.push_back(shaped(1, 2, 1, 8, 3, 1000));   // everything fits
  out.push_back(shaped(1, 2, 1, 8, 0, 6));      // nothing selected
  WorldShape cold = shaped(2, 3, 2, 12, 4, 50);
  cold.cold = true;
  out.push_back(cold);
  WorldShape pinned = shaped(2, 3, 2, 16, 4, 90);
  pinned.pinned = 0.2;
  out.push_back(pinned);
  out.push_back(shaped(2, 3, 2, 0, 2, 40));  // young: nothing but tails at first
  return out;
}

TEST_CASE("policies: every plan keeps the contract", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  const std::size_t index = GENERATE(range(0, 10));
  const std::uint64_t seed = GENERATE(1U, 2U, 3U);
  WorldShape shape = worlds()[index];
  shape.seed = seed;
  CAPTURE(name, index, seed);
  const PolicyWorld world(shape);
  const WorldRun run = world.play(name.c_str());
  CHECK(run.broken == "");
  CHECK((run.visits > 0) == (shape.selected > 0));
}

TEST_CASE("policies: the same input gives the same plans", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  WorldShape shape = shaped(2, 3, 2, 12, 4, 50);
  const PolicyWorld world(shape);
  const WorldRun first = world.play(name.c_str());
  const WorldRun second = world.play(name.c_str());
  CHECK(first.plan_digest == second.plan_digest);
  CHECK(first.misses == second.misses);
}

TEST_CASE("policies: nothing is missed twice where everything fits", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  WorldShape shape = shaped(1, 2, 2, 8, 3, 1000);
  shape.cold = GENERATE(false, true);
  const PolicyWorld world(shape);
  const WorldRun run = world.play(name.c_str());
  if (!shape.cold) {
    CHECK(run.misses == 0);
  } else if (name != "none" && name != "balance") {  // these two read in place by intent
    CHECK(run.misses <= std::uint64_t{2} * 2 * 8);
  }
  CHECK(run.drops == 0);
}

TEST_CASE("policies: min misses no more than any other", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  const std::uint64_t seed = GENERATE(1U, 2U, 3U, 4U);
  CAPTURE(name, seed);
  WorldShape shape = GENERATE(shaped(2, 3, 2, 12, 4, 40), shaped(1, 2, 1, 16, 5, 12));
  shape.seed = seed;
  const PolicyWorld world(shape);
  CHECK(world.play("min").misses <= world.play(name.c_str()).misses);
}

TEST_CASE("policies: a parameter that is unknown or out of range is refused by name",
          "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const auto unknown = make_policy(name, {{"no-such-parameter", 1.0}});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().what.find("no-such-parameter") != std::string::npos);
  const auto descriptor = find_policy(name);
  REQUIRE(descriptor);
  for (const ParameterInfo& info : (*descriptor)->parameters) {
    CHECK(info.fallback >= info.minimum);
    CHECK(info.fallback <= info.maximum);
    CHECK(make_policy(name, {{info.name, info.minimum}}));
    CHECK(make_policy(name, {{info.name, info.maximum}}));
    CHECK_FALSE(make_policy(name, {{info.name, info.maximum * 2 + 1}}));
  }
}

TEST_CASE("policies: parameters at their ends keep the contract", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const auto descriptor = find_policy(name);
  REQUIRE(descriptor);
  const PolicyWorld world(shaped(2, 3, 2, 12, 4, 50));
  for (const ParameterInfo& info : (*descriptor)->parameters) {
    for (const double value : {info.minimum, info.maximum}) {
      CAPTURE(info.name, value);
      CHECK(world.play(name.c_str(), {{info.name, value}}).broken == "");
    }
  }
}

TEST_CASE("policies: a removed page is forgotten", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const auto policy = fresh(name);
  const PolicyWorld world(shaped(1, 1, 1, 4, 1, 4));
  policy->begin(world.context());
  std::vector<Residency> residency(8, tier_bit(kHbm) | tier_bit(1));
  std::vector<std::uint16_t> guard(8, 0);
  std::vector<std::uint32_t> position{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<std::uint16_t> zero(8, 0);
  residency[3] = tier_bit(1);
  const PageColumns columns{residency, guard, position, zero, zero};
  policy->add_pages(std::vector<PageId>{0, 1, 2, 3}, std::vector<Tick>{5, 6, 7, 8}, columns);
  policy->remove_pages(std::vector<PageId>{0, 2, 3});
  LayerView view;
  view.layers = 1;
  view.capacity = 4;
  view.free_slots = 0;
  view.must_free = 1;
  view.pages = columns;
  LayerPlan plan;
  policy->decide(view, plan);
  CHECK(plan.drop == std::vector<PageId>{1});
}

TEST_CASE("policies: names are unique and known", "[contract]") {
  std::vector<std::string> all = names();
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  for (const char* name : {"unlimited", "static", "lru", "lru-promote", "lfu", "lfu-importance",
                           "arc", "s3-fifo", "histogram", "min"}) {
    CHECK(find_policy(name));
  }
  const auto none = find_policy("belady");
  REQUIRE_FALSE(none);
  CHECK(none.error().what.find("lru-promote") != std::string::npos);
}

/// Plays LRU, then spoils the plan in one way.
class Spoilt final : public Policy {
 public:
  enum class How { kDropsRead, kDropsPinned, kDropsTwice, kInstallsTwice, kInstallsHit, kTooMany };
  explicit Spoilt(How how) : how_(how), inner_(fresh("lru")) {}
  void begin(const PolicyContext& c) override { inner_->begin(c); }
  void add_pages(std::span<const PageId> p, std::span<const Tick> f,
                 const PageColumns& c) override {
    inner_->add_pages(p, f, c);
  }
  void remove_pages(std::span<const PageId> p) override { inner_->remove_pages(p); }
  void decide(const LayerView& view, LayerPlan& plan) override {
    inner_->decide(view, plan);
    switch (how_) {
      case How::kDropsRead:
        for (std::size_t i = 0; i < view.selected.size(); ++i) {
          if (view.hit[i] != 0) return plan.drop.push_back(view.selected[i]);
        }
        return;
      case How::kDropsPinned:
        for (PageId p = 0; p < view.pages.guard.size(); ++p) {
          if (view.pages.guard[p] != 0 && view.pages.in_hbm(p)) return plan.drop.push_back(p);
        }
        return;
      case How::kDropsTwice:
        if (!plan.drop.empty()) plan.drop.push_back(plan.drop.front());
        return;
      case How::kInstallsTwice:
        if (!plan.install.empty()) plan.install.push_back(plan.install.front());
        return;
      case How::kInstallsHit:
        for (std::size_t i = 0; i < view.selected.size(); ++i) {
          if (view.hit[i] != 0) return plan.install.push_back(view.selected[i]);
        }
        return;
      case How::kTooMany:
        if (!plan.drop.empty()) plan.drop.pop_back();
        return;
    }
  }

 private:
  How how_;
  std::unique_ptr<Policy> inner_;
};

TEST_CASE("policies: the contract suite sees each way to break it", "[contract][control]") {
  using How = Spoilt::How;
  const auto [how, word] = GENERATE(table<How, std::string>({
      {How::kDropsRead, "being read"},
      {How::kDropsPinned, "pinned"},
      {How::kDropsTwice, "dropped twice"},
      {How::kInstallsTwice, "installed twice"},
      {How::kInstallsHit, "not missed"},
      {How::kTooMany, "free slots"},
  }));
  CAPTURE(word);
  WorldShape shape = shaped(2, 3, 2, 12, 4, 50);
  shape.pinned = 0.1;
  Spoilt policy(how);
  CHECK(PolicyWorld(shape).play(policy).broken.find(word) != std::string::npos);
}

}  // namespace
}  // namespace lehr::placement
