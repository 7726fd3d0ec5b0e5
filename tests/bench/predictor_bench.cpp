// SPDX-License-Identifier: Apache-2.0
// What predicting costs: 100,000 pages scored, a layer observed by each predictor, and the
// recurrent network over 100,000 pages.
#include <algorithm>
#include <numeric>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/base/rng.hpp"
#include "predictors/logit.hpp"
#include "predictors/networks.hpp"
#include "predictors/watch.hpp"
#include "runtime/importance.hpp"
#include "tests/support/some_weights.hpp"

namespace {

using namespace lehr;
using namespace lehr::predictors;

constexpr std::uint32_t kPages = 100032;  // 1563 runs
constexpr std::uint32_t kRuns = kPages / Run::kLength;

/// Logits of 100,000 pages to scaled odds: what every predictor does at the end.
void scale_odds(benchmark::State& state) {
  Rng rng(1);
  std::vector<float> x(kPages);
  for (float& v : x) v = static_cast<float>(12 * rng.uniform() - 8);
  std::vector<float> odds(kPages);
  const OddsScaler scaler;
  for ([[maybe_unused]] const auto _ : state) {
    scaler.apply(1, x.data(), kPages, odds.data());
    benchmark::DoNotOptimize(odds.data());
  }
  state.counters["ns/page"] = benchmark::Counter(
      kPages * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(scale_odds)->Unit(benchmark::kMicrosecond);

/// A line or a net over the features of 100,000 pages. A predictor makes those of a run and weighs
/// them at once: four runs' take turns in the nearest cache, or else all lie in memory.
template <class Weights>
void network(benchmark::State& state) {
  const test::SomeWeights some(1);
  const auto tensors = some.tensors();
  const auto weights = Weights::from(tensors);
  Rng rng(2);
  std::vector<Features> features(static_cast<std::size_t>(state.range(1)));
  for (Features& f : features) {
    for (auto& row : f) {
      for (float& v : row) v = static_cast<float>(rng.uniform());
    }
  }
  Logits x;
  for ([[maybe_unused]] const auto _ : state) {
    for (std::uint32_t run = 0; run < kRuns; ++run) {
      weights->logits(features[run % features.size()], x,
                      static_cast<std::uint32_t>(state.range(0)));
      benchmark::DoNotOptimize(x.data());
    }
  }
  state.counters["ns/page"] = benchmark::Counter(
      kPages * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
#define LEHR_NETWORK(Weights, name)       \
  BENCHMARK(network<Weights>)             \
      ->Name(name)                        \
      ->ArgNames({"steps", "runs"})       \
      ->ArgsProduct({{1, 3}, {4, kRuns}}) \
      ->Unit(benchmark::kMicrosecond)
LEHR_NETWORK(LogisticWeights, "line");
LEHR_NETWORK(NetWeights, "net");

/// The recurrent network over 100,000 pages: groups of 8 blocks of 64, sixteen side by side, and
/// the logits of every page.
void gru(benchmark::State& state) {
  constexpr std::uint32_t kBlocks = 8;
  const test::SomeWeights some(1, 0.1F);
  const auto tensors = some.tensors();
  const auto weights = GruWeights::from(tensors);
  Rng rng(2);
  Features f;
  for (auto& row : f) {
    for (float& v : row) v = static_cast<float>(rng.uniform());
  }
  GruBatch batch;
  Logits x;
  constexpr std::uint32_t kBatches =
      (kRuns + kBlocks * GruBatch::kLanes - 1) / (kBlocks * GruBatch::kLanes);
  for ([[maybe_unused]] const auto _ : state) {
    for (std::uint32_t b = 0; b < kBatches; ++b) {
      batch.shape(kBlocks);
      for (std::uint32_t lane = 0; lane < GruBatch::kLanes; ++lane) {
        batch.set_length(lane, kBlocks);
        for (std::uint32_t i = 0; i < kBlocks; ++i)
          gru_inputs(f, Run::kLength, batch.input(i, lane), GruBatch::kLanes);
      }
      batch.run(*weights);
      for (std::uint32_t lane = 0; lane < GruBatch::kLanes; ++lane) {
        for (std::uint32_t i = 0; i < kBlocks; ++i) {
          gru_logits(f, batch.output(i, lane), GruBatch::kLanes, x);
          benchmark::DoNotOptimize(x.data());
        }
      }
    }
  }
  const double pages = double{kBatches} * kBlocks * GruBatch::kLanes * Run::kLength;
  state.counters["pages"] = pages;
  state.counters["ns/page"] = benchmark::Counter(
      pages * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["GFLOP/s"] = benchmark::Counter(
      static_cast<double>(GruWeights::kFlopsOfBlock) * kBatches * kBlocks * GruBatch::kLanes * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(gru)->Unit(benchmark::kMillisecond);

/// A step of 100,000 pages, 32 layers of 16 groups, a tenth of them read, through observe().
class Steps {
 public:
  Steps() {
    position_.resize(kLayers * kGroups * kGroupPages);
    layer_.resize(position_.size());
    sequence_.resize(position_.size(), 0);
    for (std::size_t p = 0; p < position_.size(); ++p) {
      position_[p] = static_cast<std::uint32_t>(p % kGroupPages);
      layer_[p] = static_cast<std::uint16_t>(p / (kGroups * kGroupPages));
    }
    blocks_.resize(kGroupPages);
    std::iota(blocks_.begin(), blocks_.end(), PageId{0});
    Rng rng(5);
    warmth_.resize(position_.size());
    for (float& w : warmth_) w = static_cast<float>(rng.uniform());
    mass_.resize(position_.size());
  }
  PageColumns columns() const { return {{}, {}, position_, layer_, sequence_}; }
  std::vector<PageId> all() const {
    std::vector<PageId> out(position_.size());
    std::iota(out.begin(), out.end(), PageId{0});
    return out;
  }
  const LayerView& next() {
    const std::uint32_t layer = tick_ % kLayers;
    selected_.clear();
    groups_.clear();
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      GroupView group;
      group.offset = (layer * kGroups + g) * kGroupPages;
      group.blocks = blocks_;
      group.mass = group.peak = &mass_[group.offset];
      group.kv_head = g;
      group.first = static_cast<std::uint32_t>(selected_.size());
      for (std::uint32_t i = 0; i + 1 < kGroupPages; ++i) {
        const PageId p = group.offset + i;
        const bool read = warmth_[p] + 0.3F * static_cast<float>(rng_.uniform()) > 1.05F;
        mass_[p] = static_cast<MassCode>(read ? 30 + rng_.below(20) : 60 + rng_.below(80));
        if (read) selected_.push_back(p);
      }
      group.count = static_cast<std::uint32_t>(selected_.size()) - group.first;
      groups_.push_back(group);
    }
    view_ = {};
    view_.step = tick_ / kLayers;
    view_.layer = layer;
    view_.layers = kLayers;
    view_.tick = tick_++;
    view_.selected = selected_;
    view_.groups = groups_;
    view_.pages = columns();
    return view_;
  }
  static constexpr std::uint32_t kLayers = 32;
  static constexpr std::uint32_t kGroups = 16;
  static constexpr std::uint32_t kGroupPages = 196;

 private:
  Rng rng_{3};
  Tick tick_ = 0;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint16_t> layer_;
  std::vector<std::uint16_t> sequence_;
  std::vector<PageId> blocks_;
  std::vector<PageId> selected_;
  std::vector<float> warmth_;
  std::vector<MassCode> mass_;
  std::vector<GroupView> groups_;
  LayerView view_;
};

void observe(benchmark::State& state, const char* name) {
  const test::SomeWeights some(1, 0.1F);
  const auto tensors = some.tensors();
  auto made = make_predictor(name, {});
  PredictorContext context;
  context.layers = Steps::kLayers;
  context.kv_heads = Steps::kGroups;
  context.weights = tensors;
  if (!made || !(*made)->begin(context)) {
    state.SkipWithError("cannot begin");
    return;
  }
  Steps steps;
  (*made)->add_pages(steps.all(), steps.columns());
  for ([[maybe_unused]] const auto _ : state) {
    state.PauseTiming();
    const LayerView& view = steps.next();
    state.ResumeTiming();
    (*made)->observe(view);
  }
  state.counters["ns/page"] = benchmark::Counter(
      Steps::kGroups * Steps::kGroupPages * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
#define LEHR_OBSERVE(id, name) \
  BENCHMARK_CAPTURE(observe, id, name)->Iterations(640)->Unit(benchmark::kMicrosecond)
LEHR_OBSERVE(persistence, "persistence");
LEHR_OBSERVE(ema, "ema");
LEHR_OBSERVE(frequency, "frequency");
LEHR_OBSERVE(markov, "markov");
LEHR_OBSERVE(periodic, "periodic");
LEHR_OBSERVE(neighbour_layer, "neighbour-layer");
LEHR_OBSERVE(same_step, "same-step");
LEHR_OBSERVE(table, "table");
LEHR_OBSERVE(logistic, "logistic");
LEHR_OBSERVE(net, "net");
LEHR_OBSERVE(gru, "gru");
LEHR_OBSERVE(mixture, "mixture");

/// What stands between a predictor and the policy, a layer at a time.
void watch(benchmark::State& state) {
  auto made = make_predictor("persistence", {});
  PredictorContext context;
  context.layers = Steps::kLayers;
  context.kv_heads = Steps::kGroups;
  if (!made || !(*made)->begin(context)) {
    state.SkipWithError("cannot begin");
    return;
  }
  Steps steps;
  Watch over;
  (*made)->add_pages(steps.all(), steps.columns());
  over.add_pages(steps.all());
  for ([[maybe_unused]] const auto _ : state) {
    state.PauseTiming();
    const LayerView& view = steps.next();
    state.ResumeTiming();
    over.compare(view, **made);
    state.PauseTiming();
    (*made)->observe(view);
    state.ResumeTiming();
    benchmark::DoNotOptimize(over.tell(view, **made, 1));
  }
  state.counters["ns/page"] = benchmark::Counter(
      Steps::kGroups * Steps::kGroupPages * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(watch)->Iterations(640)->Unit(benchmark::kMicrosecond);

/// The importance of 100,000 pages in runs of 64: the terms weighed, then their ranks.
class Scored {
 public:
  Scored() : heat_(32), scorer_(*runtime::Importance::create()) {
    Rng rng(8);
    heat_.grow(kPages);
    std::vector<PageId> pages(kPages);
    std::iota(pages.begin(), pages.end(), PageId{0});
    std::vector<MassCode> mass(kPages);
    for (MassCode& m : mass) m = static_cast<MassCode>(20 + rng.below(120));
    for (Step t = 0; t < 4; ++t) heat_.read(pages, mass, mass, t);
    position_.resize(Run::kLength);
    saliency_.resize(Run::kLength);
    for (float& x : position_) x = static_cast<float>(rng.uniform());
    for (float& x : saliency_) x = static_cast<float>(rng.uniform());
  }
  void weigh() {
    for (PageId p = 0; p < kPages; p += Run::kLength)
      scorer_.weigh(p, heat_.columns(), 10, position_, saliency_, &raw_[p]);
  }
  void rank() { scorer_.rank(raw_, ranks_); }

 private:
  runtime::Heat heat_;
  runtime::Importance scorer_;
  std::vector<float> position_;
  std::vector<float> saliency_;
  std::vector<float> raw_ = std::vector<float>(kPages);
  std::vector<float> ranks_ = std::vector<float>(kPages);
};

void importance_weigh(benchmark::State& state) {
  Scored scored;
  for ([[maybe_unused]] const auto _ : state) scored.weigh();
}
void importance_rank(benchmark::State& state) {
  Scored scored;
  scored.weigh();
  for ([[maybe_unused]] const auto _ : state) scored.rank();
}
BENCHMARK(importance_weigh)->Unit(benchmark::kMicrosecond);
BENCHMARK(importance_rank)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
