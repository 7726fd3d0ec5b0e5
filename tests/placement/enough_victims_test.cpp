// SPDX-License-Identifier: Apache-2.0
// Whenever slots have to become free and enough pages that the policy was told of may leave, its
// plan frees them: however many others are held, whatever was read, came or went before.
#include <algorithm>
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

TEST_CASE("orders: a search for a victim ends with one if there is one, and only then",
          "[contract]") {
  for (const PolicyDescriptor* descriptor : policies()) {
    if (descriptor->make_replacement == nullptr) continue;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(descriptor->name, seed);
      Parameters parameters;
      for (const ParameterInfo& info : descriptor->parameters)
        parameters[info.name] = info.fallback;
      const auto order = descriptor->make_replacement(parameters);
      order->reset(kCapacity, 0);
      Rng rng(seed);
      std::vector<PageId> residents;
      std::vector<std::uint16_t> guard(kPages, 0);
      for (int round = 0; round < 2000; ++round) {
        const PageId p = rng.below(kPages);
        const auto at = std::find(residents.begin(), residents.end(), p);
        const Tick next = static_cast<Tick>(round) + rng.below(50);
        if (at != residents.end()) {
          for (std::uint32_t n = rng.below(5); n > 0; --n) order->hit({&p, 1}, {&next, 1});
          continue;
        }
        if (residents.size() < kCapacity) {
          order->insert(p, next);
          residents.push_back(p);
          continue;
        }
        const std::uint32_t share = rng.below(12);
        for (auto& g : guard) g = rng.below(11) < share ? 1 : 0;
        order->hit({}, {});  // guards fell
        const bool any = std::any_of(residents.begin(), residents.end(),
                                     [&](PageId r) { return guard[r] == 0; });
        const PageId v = order->victim(kNoPage, kNever, guard);
        REQUIRE((v != kNoPage) == any);
        if (!any) continue;
        const auto leaves = std::find(residents.begin(), residents.end(), v);
        REQUIRE(leaves != residents.end());
        REQUIRE(guard[v] == 0);
        order->evict(v);
        residents.erase(leaves);
      }
    }
  }
}

}  // namespace
}  // namespace lehr::placement
