// SPDX-License-Identifier: Apache-2.0
// Page visits a second through the whole step loop on `sim`, on one core, selection from recorded
// mass left out (selection_bench has it) and included.
#include <optional>

#include <benchmark/benchmark.h>

#include "runtime/config/profile.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/replay/replay.hpp"

namespace {

using namespace lehr;

/// The bundled trace; its path comes from the build.
const formats::AttentionTrace& trace() {
  static const formats::AttentionTrace t = *formats::AttentionTrace::open(LEHR_BUNDLED_TRACE);
  return t;
}

runtime::ReplayOptions options_for(const char* policy, double share, std::uint64_t pages) {
  runtime::ReplayOptions options;
  options.runtime.platform = *config::load_profile("h200-pcie5");
  options.runtime.tier_pages.assign(options.runtime.platform.tiers.size(), 1U << 28);
  options.runtime.tier_pages[kHbm] = static_cast<std::uint32_t>(share * static_cast<double>(pages));
  options.runtime.policy = policy;
  return options;
}

void replay(benchmark::State& state, const char* policy, bool with_selection) {
  const SelectionRule rule = *SelectionRule::parse("mass:0.95");
  std::uint64_t visits = 0;
  std::optional<runtime::TraceSelection> selection(std::in_place, trace(), rule);
  for ([[maybe_unused]] const auto _ : state) {
    if (with_selection) selection.emplace(trace(), rule);
    runtime::Workload workload{{{&*selection, 0}}};
    const double share = static_cast<double>(state.range(0)) / 100;
    const auto result = runtime::replay(
        workload, options_for(policy, share, workload.total_pages()), runtime::make_sim_machine());
    if (!result) {
      state.SkipWithError(result.error().what.c_str());
      return;
    }
    visits += result->all.reads;
  }
  state.counters["visits/s"] =
      benchmark::Counter(static_cast<double>(visits), benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(replay, lru, "lru", false)->Arg(10)->Arg(25)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lfu_importance, "lfu-importance", false)
    ->Arg(10)
    ->Arg(25)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lru_and_selection, "lru", true)->Arg(25)->Unit(benchmark::kMillisecond);

/// Bytes of everything hot for a million pages: the columns of the page table and of heat.
void hot_bytes(benchmark::State& state) {
  const std::uint32_t slots[] = {1U << 20, 1U << 20, 1U << 20};
  for ([[maybe_unused]] const auto _ : state) {
    runtime::PageTable table(32, 8, slots);
    runtime::Heat heat;
    for (std::uint32_t chunk = 0; chunk < 62; ++chunk) table.open_chunk();
    heat.grow(table.rows());
    state.counters["pages"] = table.rows();
    state.counters["bytes/page"] =
        static_cast<double>(table.bytes_per_page() + runtime::Heat::kBytesPerPage);
    benchmark::DoNotOptimize(table.residency.data());
  }
}
BENCHMARK(hot_bytes)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
