// SPDX-License-Identifier: Apache-2.0
// What a decision costs: page visits a second through Policy::decide, the scoring of a million
// pages, and the choice of the coldest hundredth.
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/base/rng.hpp"
#include "placement/coldest.hpp"
#include "placement/policy.hpp"
#include "placement/score.hpp"

namespace {

using namespace lehr;
using namespace lehr::placement;

/// A batch whose groups read a tenth of their pages, four fifths of them as in the step before: 32
/// layers of 96 groups of 256 pages, 786,432 in all. Residency is kept; nothing else of a runtime
/// is.
class Steps {
 public:
  explicit Steps(double share)
      : capacity_(static_cast<std::uint32_t>(share * kPages)),
        residency_(kPages, tier_bit(1)),
        guard_(kPages, 0),
        position_(kPages),
        layer_(kPages),
        sequence_(kPages, 0),
        reads_(kLayers) {
    for (PageId p = 0; p < kPages; ++p) {
      position_[p] = p % kGroupPages;
      layer_[p] = static_cast<std::uint16_t>(p / (kGroups * kGroupPages));
    }
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      read_.assign(kPages / kLayers, 0);
      for (auto& r : read_) r = rng_.below(10) == 0 ? 1 : 0;
      reads_[l] = read_;
    }
  }

  void begin(Policy& policy) {
    policy.begin({nullptr, capacity_, 16 * kKiB, kLayers, 8, 1});
    std::vector<PageId> all(kPages);
    for (PageId p = 0; p < kPages; ++p) all[p] = p;
    for (std::uint32_t i = 0; i < capacity_; ++i) residency_[all[i]] |= tier_bit(kHbm);
    used_ = capacity_;
    policy.add_pages(all, {}, columns());
  }

  /// Draws the next selection of a layer and what the policy is to be told: not timed.
  void prepare(std::uint32_t layer) {
    auto& reads = reads_[layer];
    selected_.clear();
    hit_.clear();
    missed_.clear();
    mass_.clear();
    const PageId first = layer * (kPages / kLayers);
    for (PageId i = 0; i < reads.size(); ++i) {
      if (rng_.below(45) == 0)
        reads[i] ^= static_cast<std::uint8_t>(rng_.below(10) == 0 || reads[i] != 0);
      if (reads[i] == 0) continue;
      const PageId p = first + i;
      selected_.push_back(p);
      hit_.push_back(resident(residency_[p], kHbm) ? 1 : 0);
      if (hit_.back() == 0) missed_.push_back(p);
      mass_.push_back(static_cast<MassCode>(rng_.below(100)));
      ++guard_[p];
    }
    view_ = LayerView{};
    view_.step = step_;
    view_.layer = layer;
    view_.layers = kLayers;
    view_.tick = step_ * kLayers + layer;
    view_.selected = selected_;
    view_.hit = hit_;
    view_.missed = missed_;
    view_.mass = mass_;
    view_.peak = mass_;
    view_.capacity = capacity_;
    view_.free_slots = capacity_ - used_;
    view_.pages = columns();
  }
  void apply(const LayerPlan& plan) {
    for (const PageId p : plan.drop) residency_[p] = tier_bit(1);
    for (const PageId p : plan.install) residency_[p] |= tier_bit(kHbm);
    used_ += static_cast<std::uint32_t>(plan.install.size());
    used_ -= static_cast<std::uint32_t>(plan.drop.size());
    for (const PageId p : selected_) --guard_[p];
    if (view_.layer + 1 == kLayers) ++step_;
  }

  const LayerView& view() const { return view_; }
  static constexpr std::uint32_t kLayers = 32;

 private:
  static constexpr std::uint32_t kGroups = 96;
  static constexpr std::uint32_t kGroupPages = 256;
  static constexpr std::uint32_t kPages = kLayers * kGroups * kGroupPages;

  PageColumns columns() const { return {residency_, guard_, position_, layer_, sequence_}; }

  Rng rng_{1};
  std::uint32_t capacity_;
  std::uint32_t used_ = 0;
  Step step_ = 0;
  std::vector<Residency> residency_;
  std::vector<std::uint16_t> guard_;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint16_t> layer_;
  std::vector<std::uint16_t> sequence_;
  std::vector<std::vector<std::uint8_t>> reads_;
  std::vector<std::uint8_t> read_;
  std::vector<PageId> selected_;
  std::vector<std::uint8_t> hit_;
  std::vector<PageId> missed_;
  std::vector<MassCode> mass_;
  LayerView view_;
};

void decide(benchmark::State& state, const char* name) {
  auto policy = make_policy(name, {});
  if (!policy) {
    state.SkipWithError(policy.error().what.c_str());
    return;
  }
  Steps steps(static_cast<double>(state.range(0)) / 100);
  steps.begin(**policy);
  std::uint64_t visits = 0;
  std::uint64_t misses = 0;
  std::uint32_t layer = 0;
  LayerPlan plan;
  for (auto _ : state) {
    state.PauseTiming();
    steps.prepare(layer);
    plan.clear();
    state.ResumeTiming();
    (*policy)->decide(steps.view(), plan);
    state.PauseTiming();
    steps.apply(plan);
    visits += steps.view().selected.size();
    misses += steps.view().missed.size();
    layer = (layer + 1) % Steps::kLayers;
    state.ResumeTiming();
  }
  state.counters["visits/s"] =
      benchmark::Counter(static_cast<double>(visits), benchmark::Counter::kIsRate);
  state.counters["miss share"] = static_cast<double>(misses) / static_cast<double>(visits);
}

#define LEHR_DECIDE(id, name)         \
  BENCHMARK_CAPTURE(decide, id, name) \
      ->Arg(5)                        \
      ->Arg(25)                       \
      ->Iterations(640)               \
      ->Unit(benchmark::kMicrosecond)
LEHR_DECIDE(lru, "lru");
LEHR_DECIDE(lfu, "lfu");
LEHR_DECIDE(lfu_importance, "lfu-importance");
LEHR_DECIDE(arc, "arc");
LEHR_DECIDE(s3_fifo, "s3-fifo");
LEHR_DECIDE(lirs, "lirs");
LEHR_DECIDE(w_tinylfu, "w-tinylfu");
LEHR_DECIDE(histogram, "histogram");
LEHR_DECIDE(greedy_density, "greedy-density");

constexpr std::size_t kMillion = 1000000;

/// Scores as they come about: most pages cold, some warm.
struct Columns {
  std::vector<std::uint16_t> visits, mass, peak, born, score;
  ScoreRule rule;
  Columns() {
    Rng rng(7);
    for (auto* c : {&visits, &mass, &peak, &born, &score}) c->resize(kMillion);
    rule.now = 6000;
    rule.step = 500;
    rule.full = full_rate(8);
    for (std::size_t i = 0; i < kMillion; ++i) {
      const auto age = static_cast<std::uint32_t>(rng.uniform() * rng.uniform() * 3000);
      visits[i] = static_cast<std::uint16_t>(6200 - age);
      mass[i] = static_cast<std::uint16_t>(5800 - age - rng.below(400));
      peak[i] = static_cast<std::uint16_t>(5900 - age - rng.below(300));
      born[i] = static_cast<std::uint16_t>(rng.below(500));
    }
  }
};

void score_million(benchmark::State& state) {
  Columns c;
  for (auto _ : state) {
    score_pages({c.visits, c.mass, c.peak, c.born}, c.rule, c.score);
    benchmark::DoNotOptimize(c.score.data());
  }
}
BENCHMARK(score_million)->Unit(benchmark::kMillisecond);

void coldest_hundredth(benchmark::State& state) {
  Columns c;
  score_pages({c.visits, c.mass, c.peak, c.born}, c.rule, c.score);
  Coldest coldest;
  std::vector<std::uint32_t> out;
  for (auto _ : state) {
    coldest.choose(c.score, kMillion / 100, out);
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(coldest_hundredth)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
