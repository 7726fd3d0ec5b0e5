// SPDX-License-Identifier: Apache-2.0
// Whenever slots have to become free and enough pages that the policy was told of may leave, its
// plan frees them: however many others are held, whatever was read, came or went before.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/plan_check.hpp"
#include "placement/policy.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

constexpr std::uint32_t kLayers = 3;
constexpr std::uint32_t kPages = 90;
constexpr std::uint32_t kCapacity = 30;
constexpr std::uint32_t kRounds = 600;

/// Random layers without any pattern, so that pages are held, read and dropped in every order.
class Rounds {
 public:
  Rounds(Policy& policy, std::uint64_t seed)
      : policy_(policy), rng_(seed), platform_(test::small_platform()) {
    policy_.begin({&platform_, kCapacity, 16 * kKiB, kLayers, 1, seed});
    std::vector<PageId> all;
    std::vector<Tick> first;
    for (PageId p = 0; p < kPages; ++p) {
      residency_[p] = tier_bit(1);
      if (used_ < kCapacity && rng_.below(2) == 0) {
        residency_[p] |= tier_bit(kHbm);
        ++used_;
      }
      layer_[p] = static_cast<std::uint16_t>(p % kLayers);
      position_[p] = p / kLayers;
      all.push_back(p);
      first.push_back(rng_.below(100));
    }
    policy_.add_pages(all, first, columns());
  }

  /// The first rule that a plan broke, or nothing.
  std::string play() {
    for (round_ = 0; round_ < kRounds; ++round_) {
      std::string broken = play_layer();
      if (!broken.empty()) return "round " + std::to_string(round_) + ": " + broken;
    }
    return {};
  }

 private:
  PageColumns columns() const { return {residency_, guard_, position_, layer_, sequence_}; }
  bool in_hbm(PageId p) const { return resident(residency_[p], kHbm); }

  std::string play_layer() {
    LayerView view;
    view.step = round_ / kLayers;
    view.layer = round_ % kLayers;
    view.layers = kLayers;
    view.tick = round_;
    view.capacity = kCapacity;
    hold();
    read(view);
    recreate(view);
    const auto may_leave = static_cast<std::uint32_t>(
        std::count_if(all_.begin(), all_.end(), [&](PageId p) { return columns().evictable(p); }));
    view.free_slots = kCapacity - used_;
    view.must_free = rng_.below(view.free_slots + may_leave + 1);
    view.pages = columns();
    LayerPlan plan;
    policy_.decide(view, plan);
    const Status checked = check_plan(view, plan);
    if (!checked) return checked.error().what;
    for (const PageId p : plan.drop) leave(p);
    for (const PageId p : plan.install) come(p);
    for (const Promotion& m : plan.promote) come(m.page);
    for (const PageId p : selected_) --guard_[p];
    for (const PageId p : plan.drop_after) leave(p);
    return {};
  }

  /// Some pages are held for a while: from none to nearly all.
  void hold() {
    if (rng_.below(3) != 0) return;
    const std::uint32_t share = rng_.below(11);
    for (auto& g : guard_) g = rng_.below(10) < share ? 1 : 0;
  }

  void read(LayerView& view) {
    selected_.clear();
    hit_.clear();
    missed_.clear();
    next_.clear();
    mass_.clear();
    const std::uint32_t share = rng_.below(8);
    for (PageId p = view.layer; p < kPages; p += kLayers) {
      if (residency_[p] == 0 || rng_.below(10) >= share) continue;
      selected_.push_back(p);
      hit_.push_back(in_hbm(p) ? 1 : 0);
      if (!in_hbm(p)) missed_.push_back(p);
      next_.push_back(view.tick + 1 + rng_.below(40));
      mass_.push_back(static_cast<MassCode>(rng_.below(100)));
      ++guard_[p];
    }
    view.selected = selected_;
    view.hit = hit_;
    view.missed = missed_;
    view.next_use = next_;
    view.mass = mass_;
    view.peak = mass_;
  }

  /// A page ceases to exist, and another of its number comes: as one that became full in HBM.
  void recreate(LayerView& view) {
    filled_.clear();
    filled_next_.clear();
    for (PageId p = view.layer; p < kPages; p += kLayers) {
      if (guard_[p] != 0 || rng_.below(12) != 0) continue;
      if (!in_hbm(p) && used_ == kCapacity) continue;
      policy_.remove_pages(std::vector<PageId>{p});
      if (!in_hbm(p)) come(p);
      filled_.push_back(p);
      filled_next_.push_back(view.tick + 1 + rng_.below(40));
    }
    view.filled = filled_;
    view.filled_next_use = filled_next_;
  }

  void come(PageId p) {
    residency_[p] |= tier_bit(kHbm);
    ++used_;
  }
  void leave(PageId p) {
    residency_[p] = tier_bit(1);
    --used_;
  }

  Policy& policy_;
  Rng rng_;
  Platform platform_;
  std::uint32_t round_ = 0;
  std::uint32_t used_ = 0;
  std::vector<Residency> residency_ = std::vector<Residency>(kPages, 0);
  std::vector<std::uint16_t> guard_ = std::vector<std::uint16_t>(kPages, 0);
  std::vector<std::uint32_t> position_ = std::vector<std::uint32_t>(kPages, 0);
  std::vector<std::uint16_t> layer_ = std::vector<std::uint16_t>(kPages, 0);
  std::vector<std::uint16_t> sequence_ = std::vector<std::uint16_t>(kPages, 0);
  std::vector<PageId> all_ = [] {
    std::vector<PageId> all(kPages);
    for (PageId p = 0; p < kPages; ++p) all[p] = p;
    return all;
  }();
  std::vector<PageId> selected_;
  std::vector<std::uint8_t> hit_;
  std::vector<PageId> missed_;
  std::vector<Tick> next_;
  std::vector<MassCode> mass_;
  std::vector<PageId> filled_;
  std::vector<Tick> filled_next_;
};

TEST_CASE("policies: what has to become free does, as long as enough pages may leave",
          "[contract]") {
  for (const PolicyDescriptor* descriptor : policies()) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      auto policy = make_policy(descriptor->name, {});
      REQUIRE(policy);
      CAPTURE(descriptor->name, seed);
      CHECK(Rounds(**policy, seed).play() == "");
    }
  }
}

TEST_CASE("policies: with less HBM than is pinned a plan drops nothing, and ends", "[contract]") {
  for (const PolicyDescriptor* descriptor : policies()) {
    CAPTURE(descriptor->name);
    auto policy = make_policy(descriptor->name, {});
    REQUIRE(policy);
    const Platform platform = test::small_platform();
    constexpr std::uint32_t kFew = 6;
    (*policy)->begin({&platform, kFew, 16 * kKiB, 1, 1, 1});
    const std::vector<PageId> all{0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<Residency> residency(8, tier_bit(1));
    for (PageId p = 0; p < kFew; ++p) residency[p] |= tier_bit(kHbm);
    const std::vector<std::uint16_t> guard(8, 1);
    const std::vector<std::uint32_t> position(all.begin(), all.end());
    const std::vector<std::uint16_t> zero(8, 0);
    const PageColumns columns{residency, guard, position, zero, zero};
    (*policy)->add_pages(all, std::vector<Tick>(8, 1), columns);
    const std::vector<PageId> missed{6, 7};
    const std::vector<std::uint8_t> hit{0, 0};
    const std::vector<Tick> next{1, 1};
    const std::vector<MassCode> mass{10, 10};
    LayerView view;
    view.layers = 1;
    view.selected = missed;
    view.missed = missed;
    view.hit = hit;
    view.next_use = next;
    view.mass = mass;
    view.peak = mass;
    view.capacity = kFew;
    view.must_free = 3;
    view.pages = columns;
    LayerPlan plan;
    (*policy)->decide(view, plan);
    CHECK(plan.drop.empty());
    CHECK(plan.install.empty());
    CHECK(plan.promote.empty());
  }
}

/// A replacement order with random visits, and what it is told to hold.
class Order {
 public:
  Order(const PolicyDescriptor& descriptor, std::uint64_t seed) : rng_(seed) {
    Parameters parameters;
    for (const ParameterInfo& info : descriptor.parameters) parameters[info.name] = info.fallback;
    order_ = descriptor.make_replacement(parameters);
    order_->reset(kCapacity, 0);
  }

  void visit(int round) {
    const PageId p = rng_.below(kPages);
    const Tick next = static_cast<Tick>(round) + rng_.below(50);
    if (std::find(residents_.begin(), residents_.end(), p) != residents_.end()) {
      // Several times, so that second chances are many.
      for (std::uint32_t n = rng_.below(5); n > 0; --n) order_->hit({&p, 1}, {&next, 1});
    } else if (residents_.size() < kCapacity) {
      order_->insert(p, next);
      residents_.push_back(p);
    } else {
      evict();
    }
  }

 private:
  void evict() {
    const std::uint32_t share = rng_.below(12);
    for (auto& g : guard_) g = rng_.below(11) < share ? 1 : 0;
    order_->hit({}, {});  // guards fell
    const bool any =
        std::any_of(residents_.begin(), residents_.end(), [&](PageId r) { return guard_[r] == 0; });
    const PageId v = order_->victim(kNoPage, kNever, guard_);
    REQUIRE((v != kNoPage) == any);
    if (!any) return;
    const auto leaves = std::find(residents_.begin(), residents_.end(), v);
    REQUIRE(leaves != residents_.end());
    REQUIRE(guard_[v] == 0);
    order_->evict(v);
    residents_.erase(leaves);
  }

  Rng rng_;
  std::unique_ptr<Replacement> order_;
  std::vector<PageId> residents_;
  std::vector<std::uint16_t> guard_ = std::vector<std::uint16_t>(kPages, 0);
};

TEST_CASE("orders: a search for a victim ends with one if there is one, and only then",
          "[contract]") {
  for (const PolicyDescriptor* descriptor : policies()) {
    if (descriptor->make_replacement == nullptr) continue;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(descriptor->name, seed);
      Order order(*descriptor, seed);
      for (int round = 0; round < 2000; ++round) order.visit(round);
    }
  }
}

}  // namespace
}  // namespace lehr::placement
