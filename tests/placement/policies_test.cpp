// SPDX-License-Identifier: Apache-2.0
// What single policies promise beyond the contract, on layers small enough to follow by hand.
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

/// One layer over a few pages, HBM as large as said, no tails.
class Bench {
 public:
  Bench(const std::string& name, std::uint32_t pages, std::uint32_t capacity,
        const Parameters& given = {})
      : residency_(pages, tier_bit(1)),
        guard_(pages, 0),
        position_(pages, 0),
        zero_(pages, 0),
        capacity_(capacity) {
    auto made = make_policy(name, given);
    REQUIRE(made);
    policy_ = std::move(*made);
    platform_ = test::small_platform();
    policy_->begin({&platform_, capacity, 16 * kKiB, 1, 1, 1});
  }
  /// Pages 0 to n - 1 exist, those below `resident` in HBM.
  void start(PageId n, PageId resident) {
    std::vector<PageId> all;
    for (PageId p = 0; p < n; ++p) {
      all.push_back(p);
      if (p < resident) residency_[p] |= tier_bit(kHbm);
    }
    used_ = resident;
    policy_->add_pages(all, {}, columns());
  }
  /// Reads pages with a mass code; returns what was planned.
  LayerPlan read(const std::vector<PageId>& pages, const std::vector<MassCode>& mass = {}) {
    std::vector<std::uint8_t> hit;
    std::vector<PageId> missed;
    for (const PageId p : pages) {
      hit.push_back(resident(residency_[p], kHbm) ? 1 : 0);
      if (hit.back() == 0) missed.push_back(p);
      guard_[p] = 1;
    }
    LayerView view;
    view.step = step_;
    view.tick = step_++;
    view.layers = 1;
    view.selected = pages;
    view.hit = hit;
    view.missed = missed;
    view.mass = mass;
    view.peak = mass;
    view.capacity = capacity_;
    view.free_slots = capacity_ - used_;
    view.from_tier[1].hidden_bytes = hidden_;
    view.pages = columns();
    LayerPlan plan;
    policy_->decide(view, plan);
    for (const PageId p : plan.drop) residency_[p] = tier_bit(1);
    for (const PageId p : plan.install) residency_[p] |= tier_bit(kHbm);
    used_ += static_cast<std::uint32_t>(plan.install.size());
    used_ -= static_cast<std::uint32_t>(plan.drop.size());
    for (const PageId p : pages) guard_[p] = 0;
    return plan;
  }
  bool in_hbm(PageId p) const { return resident(residency_[p], kHbm); }
  void hide(Bytes bytes) { hidden_ = bytes; }

 private:
  PageColumns columns() const { return {residency_, guard_, position_, zero_, zero_}; }

  std::unique_ptr<Policy> policy_;
  Platform platform_;
  std::vector<Residency> residency_;
  std::vector<std::uint16_t> guard_;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint16_t> zero_;
  std::uint32_t capacity_;
  std::uint32_t used_ = 0;
  Step step_ = 0;
  Bytes hidden_ = 0;
};

TEST_CASE("fill on read: hits first, then room for each miss in order") {
  Bench b("lru", 8, 3);
  b.start(8, 3);  // 0 1 2, the oldest first
  const LayerPlan plan = b.read({0, 5, 6, 7});
  CHECK(plan.drop == std::vector<PageId>{1, 2});
  CHECK(plan.install == std::vector<PageId>{5, 6});  // 7 finds only pages of its own layer
  CHECK(plan.promote.empty());
}

TEST_CASE("lru-promote misses as lru does and crosses twice") {
  WorldShape shape;
  shape.sequences = 2;
  shape.kv_heads = 2;
  shape.prompt_pages = 12;
  shape.capacity = 40;
  const PolicyWorld world(shape);
  auto lru = make_policy("lru", {});
  auto promote = make_policy("lru-promote", {});
  REQUIRE(lru);
  REQUIRE(promote);
  const WorldRun one = world.play(**lru);
  const WorldRun two = world.play(**promote);
  CHECK(one.misses == two.misses);
  CHECK(one.installs > 0);
  CHECK(two.installs == 0);
  CHECK(two.promotions == one.installs);
}

TEST_CASE("none and static: a full HBM stays as it is, a free slot only static fills") {
  for (const char* name : {"none", "static"}) {
    CAPTURE(name);
    Bench b(name, 8, 3);
    b.start(8, 2);
    const LayerPlan first = b.read({5, 6});
    CHECK(first.install.size() == (std::string(name) == "static" ? 1U : 0U));
    const LayerPlan second = b.read({6, 7});
    CHECK(second.install.empty());
    CHECK(second.drop.empty());
  }
}

TEST_CASE("balance moves nothing that the link hides") {
  Bench b("balance", 12, 4);
  b.start(12, 4);
  b.hide(Bytes{4} * 16 * kKiB);  // four pages a layer for free
  for (int i = 0; i < 10; ++i) CHECK(b.read({8, 9, 10, 11}).install.empty());
  // One miss more than that: one page is worth a move, in the place of one that nobody read.
  const LayerPlan plan = b.read({7, 8, 9, 10, 11});
  CHECK(plan.install.size() == 1);
  CHECK(plan.install.front() != 7);  // the densest, not the newcomer
}

TEST_CASE("balance without a hidden budget installs what is denser", "[control]") {
  Bench b("balance", 12, 4);
  b.start(12, 4);
  LayerPlan plan;
  for (int i = 0; i < 3; ++i) plan = b.read({8, 9, 10, 11});
  for (PageId p = 8; p < 12; ++p) CHECK(b.in_hbm(p));
}

TEST_CASE("lfu-importance: of equally visited pages the one of more mass is kept") {
  Bench b("lfu-importance", 8, 3);
  b.start(8, 3);
  // 0, 1 and 2 are read alike; 1 carries little mass.
  for (int i = 0; i < 6; ++i) b.read({0, 1, 2}, {8, 80, 8});
  // 5 comes and is read with much mass until it qualifies: 1 gives way, in whatever step.
  std::vector<PageId> left;
  for (int i = 0; i < 12 && left.empty(); ++i) left = b.read({0, 2, 5}, {8, 8, 4}).drop;
  CHECK(left == std::vector<PageId>{1});
  CHECK(b.in_hbm(5));
}

TEST_CASE("lfu-importance: a visit or two do not promote, more do") {
  // All residents are in use; 5 is read in every step with the highest mass.
  Bench b("lfu-importance", 8, 3, {{"window", 100}, {"promote-score", 0.3}, {"demote-score", 0}});
  b.start(8, 3);
  for (int i = 0; i < 8; ++i) b.read({0, 1}, {60, 60});
  CHECK(b.read({5}, {0}).install.empty());
  CHECK(b.read({5}, {0}).install.empty());
  CHECK(b.read({5}, {0}).install == std::vector<PageId>{5});
  CHECK_FALSE(b.in_hbm(2));  // never read
}

TEST_CASE("lfu-importance: idle pages give way to a first visit", "[control]") {
  const auto installs = [](double idle) {
    Bench b("lfu-importance", 8, 3,
            {{"window", 1}, {"demote-idle", idle}, {"demote-score", 0}, {"promote-visits", 255}});
    b.start(8, 3);
    b.read({0, 1, 2});
    for (int i = 0; i < 5; ++i) b.read({});
    return b.read({6}).install.size();
  };
  CHECK(installs(3) == 1);
  CHECK(installs(1000) == 0);
}

TEST_CASE("lfu-importance keeps its keys in range in a run of any length") {
  Bench b("lfu-importance", 8, 3, {{"half-life", 0.25}, {"window", 4}});
  b.start(8, 3);
  for (int i = 0; i < 3000; ++i)
    b.read({3, 4, 5}, {0, 250, 254});  // 256 units a step: time zero moves often
  for (PageId p = 3; p < 6; ++p) CHECK(b.in_hbm(p));
  LayerPlan plan;
  for (int i = 0; i < 40; ++i) plan = b.read({0, 1, 2}, {20, 20, 20});
  for (PageId p = 0; p < 3; ++p) CHECK(b.in_hbm(p));
}

TEST_CASE("min bypasses what is not read again") {
  Bench b("min", 8, 2);
  b.start(8, 0);
  // Without knowledge of the future nothing is known to be read again.
  CHECK(b.read({1, 2}).install.empty());
}

}  // namespace
}  // namespace lehr::placement
