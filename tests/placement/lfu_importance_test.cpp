// SPDX-License-Identifier: Apache-2.0
// Self-tuning of lfu-importance: plain recency where importance says nothing, scores where it does.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/mass.hpp"
#include "kernels/base/rng.hpp"
#include "placement/plan_check.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {
namespace {

constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kPages = 8000;  ///< of all layers

/// Reads of a step: pages of a layer, with their masses.
struct Reads {
  std::vector<PageId> pages;
  std::vector<MassCode> mass;
};

/// A working set that drifts: pages are read a few steps in a row and then hardly ever again, so
/// that what counted many reads is worth nothing. Masses are drawn at random.
Reads without_signal(Step step, std::uint32_t layer, Rng& rng) {
  Reads r;
  const std::uint32_t per_layer = kPages / kLayers;
  const std::uint32_t front = step * 20 % per_layer;
  std::vector<std::uint8_t> read(per_layer, 0);
  for (std::uint32_t i = 0; i < 150; ++i) {
    if (rng.below(8) != 0) read[(front + i) % per_layer] = 1;
  }
  for (std::uint32_t i = 0; i < 10; ++i) read[rng.below(per_layer)] = 1;
  for (std::uint32_t i = 0; i < per_layer; ++i) {
    if (read[i] == 0) continue;
    r.pages.push_back(i * kLayers + layer);
    r.mass.push_back(static_cast<MassCode>(rng.below(200)));
  }
  return r;
}

/// A cyclic scan of more than fits, and a tenth of the pages in which nearly all mass lies and
/// which are read half of the time.
Reads with_signal(Step step, std::uint32_t layer, Rng& rng) {
  Reads r;
  const std::uint32_t per_layer = kPages / kLayers;
  for (std::uint32_t i = 0; i < per_layer; ++i) {
    const bool heavy = i % 10 == 3;
    const bool scanned = (i + step) % 6 == 0;
    if (!(heavy ? rng.below(2) == 0 : scanned)) continue;
    r.pages.push_back(i * kLayers + layer);
    r.mass.push_back(static_cast<MassCode>((heavy ? 20 : 100) + rng.below(20)));
  }
  return r;
}

void apply(const LayerPlan& plan, std::vector<Residency>& residency, std::uint32_t& used) {
  for (const PageId p : plan.drop) residency[p] = tier_bit(1);
  for (const PageId p : plan.install) residency[p] |= tier_bit(kHbm);
  used += static_cast<std::uint32_t>(plan.install.size());
  used -= static_cast<std::uint32_t>(plan.drop.size());
}

template <class Trace>
std::uint64_t misses(const std::string& name, const Parameters& parameters, Trace trace,
                     std::uint32_t capacity, Step steps) {
  auto policy = make_policy(name, parameters);
  REQUIRE(policy);
  std::vector<Residency> residency(kPages, tier_bit(1));
  std::vector<std::uint16_t> guard(kPages, 0);
  std::vector<std::uint32_t> position(kPages, 0);
  std::vector<std::uint16_t> layer_of(kPages);
  std::vector<std::uint16_t> sequence(kPages, 0);
  std::vector<PageId> all(kPages);
  for (PageId p = 0; p < kPages; ++p) {
    all[p] = p;
    layer_of[p] = static_cast<std::uint16_t>(p % kLayers);
    if (p >= kPages - capacity) residency[p] |= tier_bit(kHbm);
  }
  const PageColumns columns{residency, guard, position, layer_of, sequence};
  (*policy)->begin({nullptr, capacity, 4096, kLayers, 1, 1});
  (*policy)->add_pages(all, {}, columns);
  Rng rng(17);
  std::uint64_t missed_in_all = 0;
  std::uint32_t used = capacity;
  LayerPlan plan;
  for (Step step = 0; step < steps; ++step) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const Reads reads = trace(step, layer, rng);
      std::vector<std::uint8_t> hit;
      std::vector<PageId> missed;
      for (const PageId p : reads.pages) {
        hit.push_back(resident(residency[p], kHbm) ? 1 : 0);
        if (hit.back() == 0) missed.push_back(p);
        ++guard[p];
      }
      LayerView view;
      view.step = step;
      view.layer = layer;
      view.layers = kLayers;
      view.tick = step * kLayers + layer;
      view.selected = reads.pages;
      view.hit = hit;
      view.missed = missed;
      view.mass = reads.mass;
      view.peak = reads.mass;
      view.capacity = capacity;
      view.free_slots = capacity - used;
      view.pages = columns;
      plan.clear();
      (*policy)->decide(view, plan);
      REQUIRE(check_plan(view, plan));
      apply(plan, residency, used);
      for (const PageId p : reads.pages) --guard[p];
      missed_in_all += missed.size();
    }
  }
  return missed_in_all;
}

TEST_CASE("lfu-importance: where importance carries no signal, self-tuning misses what lru does") {
  const std::uint32_t capacity = GENERATE(900U, 1600U);
  CAPTURE(capacity);
  const auto lru = static_cast<double>(misses("lru", {}, without_signal, capacity, 300));
  const auto tuned = static_cast<double>(
      misses("lfu-importance", {{"self-tune", 1}}, without_signal, capacity, 300));
  CAPTURE(lru, tuned);
  CHECK(tuned <= 1.01 * lru);
  // Control: fixed weights do not get there.
  CHECK(static_cast<double>(misses("lfu-importance", {}, without_signal, capacity, 300)) >
        1.01 * lru);
}

TEST_CASE("lfu-importance: where importance tells, self-tuning leaves lru for scores") {
  constexpr std::uint32_t kCapacity = 1000;
  const auto lru = static_cast<double>(misses("lru", {}, with_signal, kCapacity, 200));
  const auto fixed = static_cast<double>(misses("lfu-importance", {}, with_signal, kCapacity, 200));
  const auto tuned = static_cast<double>(
      misses("lfu-importance", {{"self-tune", 1}}, with_signal, kCapacity, 200));
  CAPTURE(lru, fixed, tuned);
  CHECK(tuned < 0.9 * lru);
  CHECK(tuned < 1.05 * fixed);
}

TEST_CASE("lfu-importance: without masses self-tuning still goes by what misses least") {
  const auto bare = [](auto trace) {
    return [trace](Step step, std::uint32_t layer, Rng& rng) {
      Reads r = trace(step, layer, rng);
      std::fill(r.mass.begin(), r.mass.end(), kNoMass);
      return r;
    };
  };
  const auto lru = static_cast<double>(misses("lru", {}, bare(without_signal), 900, 300));
  const auto tuned = static_cast<double>(
      misses("lfu-importance", {{"self-tune", 1}}, bare(without_signal), 900, 300));
  CHECK(tuned <= 1.01 * lru);
}

}  // namespace
}  // namespace lehr::placement
