// SPDX-License-Identifier: Apache-2.0
// What a decision costs: page visits a second through Policy::decide, the scoring of a million
// pages, and the choice of the coldest hundredth.
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/base/rng.hpp"
#include "placement/cold_list.hpp"
#include "placement/coldest.hpp"
#include "placement/policy.hpp"
#include "placement/score.hpp"
#include "tests/bench/platform.hpp"

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
        reads_(kLayers),
        odds_(kPages, 0.02F) {
    for (PageId p = 0; p < kPages; ++p) {
      position_[p] = p % kGroupPages;
      layer_[p] = static_cast<std::uint16_t>(p / (kGroups * kGroupPages));
      sequence_[p] = static_cast<std::uint16_t>(p / kGroupPages % kGroups / 8);
    }
    for (std::uint32_t g = 0; g < kLayers * kGroups; ++g) {
      blocks_.emplace_back();
      for (PageId i = 0; i < kGroupPages; ++i) blocks_.back().push_back(g * kGroupPages + i);
      blocks_.back().push_back(kPages);  // the tail
    }
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      read_.assign(kPages / kLayers, 0);
      for (auto& r : read_) r = rng_.below(10) == 0 ? 1 : 0;
      reads_[l] = read_;
    }
  }

  void begin(Policy& policy) {
    policy.begin({&platform_, capacity_, 16 * kKiB, kLayers, 8, 1});
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
      const PageId p = first + i;
      // What a predictor would say: four fifths of what was read is read again.
      odds_[p] = reads[i] != 0 ? 0.8F : odds_[p] > 0.1F ? 0.1F : 0.02F;
      if (reads[i] == 0) continue;
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
    groups_.resize(kGroups);
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      groups_[g].blocks = blocks_[layer * kGroups + g];
      groups_[g].sequence = g / 8;
      groups_[g].kv_head = g % 8;
    }
    view_.groups = groups_;
    view_.odds = odds_;
    view_.forecast.odds[0] = odds_;
    view_.forecast.horizon = 1;
    view_.from_tier[1] = {64 * kKiB, 1e-6};
  }
  void apply(const LayerPlan& plan) {
    for (const PageId p : plan.drop) residency_[p] = tier_bit(1);
    for (const PageId p : plan.install) residency_[p] |= tier_bit(kHbm);
    for (const Promotion& m : plan.promote) residency_[m.page] |= tier_bit(kHbm);
    used_ += static_cast<std::uint32_t>(plan.install.size() + plan.promote.size());
    used_ -= static_cast<std::uint32_t>(plan.drop.size());
    for (const PageId p : selected_) --guard_[p];
    if (view_.layer + 1 == kLayers) ++step_;
  }

  const LayerView& view() const { return view_; }
  static constexpr std::uint32_t kLayers = 32;
  static constexpr std::uint32_t kGroups = 96;
  static constexpr std::uint32_t kGroupPages = 256;
  static constexpr std::uint32_t kPages = kLayers * kGroups * kGroupPages;

 private:
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
  std::vector<float> odds_;
  std::vector<std::vector<PageId>> blocks_;
  std::vector<GroupView> groups_;
  Platform platform_ = bench::platform();
  LayerView view_;
};

void decide(benchmark::State& state, const char* name, const Parameters& parameters = {}) {
  auto policy = make_policy(name, parameters);
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
  for (std::uint32_t i = 0; i < 2 * Steps::kLayers; ++i) {  // to where it settles
    steps.prepare(i % Steps::kLayers);
    plan.clear();
    (*policy)->decide(steps.view(), plan);
    steps.apply(plan);
  }
  for ([[maybe_unused]] const auto _ : state) {
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
  // Of all pages of the layer, read or not: a whole step of a million pages takes a million of
  // them.
  state.counters["pages/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * Steps::kGroups * Steps::kGroupPages,
      benchmark::Counter::kIsRate);
  state.counters["miss share"] = static_cast<double>(misses) / static_cast<double>(visits);
}

#define LEHR_DECIDE(id, ...)                 \
  BENCHMARK_CAPTURE(decide, id, __VA_ARGS__) \
      ->Arg(5)                               \
      ->Arg(25)                              \
      ->Iterations(640)                      \
      ->Unit(benchmark::kMicrosecond)
LEHR_DECIDE(lru, "lru");
LEHR_DECIDE(lfu, "lfu");
LEHR_DECIDE(lfu_importance, "lfu-importance");
LEHR_DECIDE(lfu_importance_tuned, "lfu-importance", Parameters{{"self-tune", 1}});
LEHR_DECIDE(arc, "arc");
LEHR_DECIDE(s3_fifo, "s3-fifo");
LEHR_DECIDE(lirs, "lirs");
LEHR_DECIDE(w_tinylfu, "w-tinylfu");
LEHR_DECIDE(histogram, "histogram");
LEHR_DECIDE(greedy_density, "greedy-density");
LEHR_DECIDE(table, "table");
LEHR_DECIDE(sa, "sa");
LEHR_DECIDE(knapsack, "knapsack");
LEHR_DECIDE(sa_adaptive, "sa-adaptive");

/// An eviction from the free list, however long it is: a page is taken, and another comes.
void evict(benchmark::State& state) {
  const auto pages = static_cast<std::uint32_t>(state.range(0));
  ColdList list;
  list.reset(pages);
  Rng rng(3);
  std::vector<std::uint16_t> score(pages);
  for (PageId p = 0; p < pages; ++p) {
    score[p] = static_cast<std::uint16_t>(rng.below(60'000));
    list.keep(p);
  }
  const auto scores = [&](std::span<const PageId> of, std::span<std::uint16_t> out) {
    for (std::size_t i = 0; i < of.size(); ++i) out[i] = score[of[i]];
  };
  constexpr std::uint32_t kBatch = 256;
  for ([[maybe_unused]] const auto _ : state) {
    state.PauseTiming();
    list.sweep(1, 0.125, scores);
    state.ResumeTiming();
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const PageId p = list.coldest({});
      list.leave(p);
      list.keep(p);
    }
  }
  state.counters["evictions/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kBatch, benchmark::Counter::kIsRate);
}
BENCHMARK(evict)->Arg(10'000)->Arg(1'000'000)->Iterations(400);

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
  for ([[maybe_unused]] const auto _ : state) {
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
  for ([[maybe_unused]] const auto _ : state) {
    coldest.choose(c.score, kMillion / 100, out);
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(coldest_hundredth)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
