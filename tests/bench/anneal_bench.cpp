// SPDX-License-Identifier: Apache-2.0
// Proposals of the annealer a second, for problems of 2^14 to a million marginal pages.
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/base/rng.hpp"
#include "placement/anneal.hpp"
#include "tests/bench/platform.hpp"

namespace {

using namespace lehr;
using namespace lehr::placement;

void anneal(benchmark::State& state) {
  constexpr std::uint32_t kLayers = 80;
  const auto pages = static_cast<std::uint32_t>(state.range(0));
  Rng rng(1);
  std::vector<MarginalPage> marginal(pages);
  for (std::uint32_t i = 0; i < pages; ++i) {
    marginal[i] = {static_cast<float>(rng.uniform()), static_cast<std::uint16_t>(i % kLayers),
                   rng.below(2) == 0, i};
  }
  const std::vector<MissCost> cost(kLayers, MissCost(bench::platform(), 16 * kKiB, 2e-6));
  const std::vector<double> misses(kLayers, 1.0);
  AnnealSchedule schedule;
  schedule.proposals = 20'000'000;
  schedule.per_temperature = schedule.proposals / 100;
  schedule.patience = schedule.proposals;
  Annealer annealer;
  AnnealResult result;
  std::uint64_t proposals = 0;
  for ([[maybe_unused]] const auto _ : state) {
    if (!annealer.run({marginal, cost, misses, 1e-8}, schedule, result))
      state.SkipWithError("refused");
    proposals += result.proposals;
    benchmark::DoNotOptimize(result.after);
  }
  state.counters["proposals/s"] =
      benchmark::Counter(static_cast<double>(proposals), benchmark::Counter::kIsRate);
  state.counters["gain"] = 1 - result.after / result.before;
}
BENCHMARK(anneal)->Arg(1 << 14)->Arg(1 << 17)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
