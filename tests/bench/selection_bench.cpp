// SPDX-License-Identifier: Apache-2.0
// How many page visits a second selection alone can feed to a replay, on the bundled recording.
#include <cstdint>
#include <string>

#include <benchmark/benchmark.h>

#include "runtime/formats/attention_trace.hpp"
#include "runtime/selection.hpp"

namespace {

using lehr::formats::AttentionTrace;

void select_all_rows(benchmark::State& state, const char* text) {
  const auto trace = AttentionTrace::open(LEHR_BUNDLED_TRACE);
  const auto rule = lehr::SelectionRule::parse(text);
  if (!trace || !rule) {
    state.SkipWithError(trace ? rule.error().what.c_str() : trace.error().what.c_str());
    return;
  }
  lehr::Selector selector(*rule);
  std::uint64_t visits = 0;
  std::uint64_t pages = 0;
  for ([[maybe_unused]] const auto _ : state) {
    for (std::uint32_t step = 0; step < (*trace).steps(); ++step) {
      const std::uint32_t live = (*trace).pages_at(step);
      for (std::uint32_t layer = 0; layer < (*trace).layers(); ++layer) {
        for (std::uint32_t head = 0; head < (*trace).kv_heads(); ++head) {
          const auto chosen = selector.select((*trace).mass_row(step, layer, head),
                                              (*trace).peak_row(step, layer, head), live);
          benchmark::DoNotOptimize(chosen.data());
          visits += chosen.size();
          pages += live;
        }
      }
    }
  }
  using benchmark::Counter;
  state.counters["visits/s"] = Counter(static_cast<double>(visits), Counter::kIsRate);
  state.counters["pages/s"] = Counter(static_cast<double>(pages), Counter::kIsRate);
}

BENCHMARK_CAPTURE(select_all_rows, all, "all");
BENCHMARK_CAPTURE(select_all_rows, topk, "topk:10%");
BENCHMARK_CAPTURE(select_all_rows, mass, "mass:0.95");

}  // namespace

BENCHMARK_MAIN();
