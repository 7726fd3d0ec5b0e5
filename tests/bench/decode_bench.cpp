// SPDX-License-Identifier: Apache-2.0
// Host time of deciding and listing a step for a GPU, without a GPU: the whole step loop and the
// cuda machine over a device that does nothing. 64 sequences of the bundled trace, or of another
// one in LEHR_BENCH_TRACE.
#include <cstdlib>

#include <benchmark/benchmark.h>
#include <time.h>

#include "runtime/config/profile.hpp"
#include "runtime/machines/cuda/decode_machine.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/replay/replay.hpp"

namespace {

using namespace lehr;
namespace cuda = runtime::cuda;

class NullDevice final : public cuda::DecodeDevice {
 public:
  cuda::TierMemory memory(TierId tier) const override {
    return {(std::uint64_t{tier} + 1) << 40, 8192, tier != kHbm, {}};
  }
  Status set_up(std::span<const kernels::PageContents>,
                std::span<const kernels::PageCopy>) override {
    return {};
  }
  Status prepare(const kernels::StepShape&) override { return {}; }
  Status start_row(std::uint32_t, std::uint32_t, std::span<const kernels::PageEntry>) override {
    return {};
  }
  Status launch(std::span<const std::byte> lists, cuda::LayerRange) override {
    bytes_ += lists.size();
    return {};
  }
  Status drain() override { return {}; }
  std::vector<cuda::StepTimes> take_times() override { return {}; }
  Result<std::uint64_t> count_bad(std::span<const kernels::PageContents>) override {
    return std::uint64_t{0};
  }
  Result<std::uint64_t> bad_reads() override { return std::uint64_t{0}; }
  Result<std::vector<std::uint16_t>> outputs() override { return std::vector<std::uint16_t>{}; }
  Result<cuda::StepTimes> repeat(std::uint32_t) override { return cuda::StepTimes{}; }
  Result<std::vector<std::uint64_t>> kernel_stamps() override {
    return std::vector<std::uint64_t>{};
  }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::size_t bytes_ = 0;
};

const formats::AttentionTrace& trace() {
  const char* other = std::getenv("LEHR_BENCH_TRACE");
  static const formats::AttentionTrace t =
      *formats::AttentionTrace::open(other != nullptr ? other : LEHR_BUNDLED_TRACE);
  return t;
}

/// CPU time, for wall time says little on a machine that others use.
double cpu_seconds() {
  timespec now{};
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Of a step, without the set-up: the difference of a long and a short run.
void step(benchmark::State& state, const char* policy, bool lists, std::uint32_t plan_every = 1) {
  static const runtime::TraceSelection selection(trace(), *SelectionRule::parse("mass:0.95"));
  runtime::Workload workload;
  workload.sequences.assign(64, {&selection, 0});
  runtime::ReplayOptions options;
  options.runtime.platform = *config::load_profile("h200-pcie5");
  const std::uint64_t pages = workload.total_pages();
  options.runtime.tier_pages.assign(options.runtime.platform.tiers.size(), 0);
  options.runtime.tier_pages[kHbm] = static_cast<std::uint32_t>(pages / 4);
  options.runtime.tier_pages[options.runtime.platform.home] = static_cast<std::uint32_t>(pages);
  options.runtime.policy = policy;
  options.runtime.plan_every = plan_every;
  constexpr std::uint32_t kShort = 4, kLong = 28;
  double spent[2] = {}, listing = 0;
  std::uint64_t reads[2] = {};
  for ([[maybe_unused]] const auto _ : state) {
    for (const std::size_t run : {std::size_t{0}, std::size_t{1}}) {
      std::unique_ptr<runtime::Machine> machine = runtime::make_sim_machine();
      const auto log = std::make_shared<cuda::DecodeLog>();
      if (lists) {
        runtime::CudaMachineOptions o;
        o.platform = options.runtime.platform;
        o.tier_pages = options.runtime.tier_pages;
        o.geometry = trace().geometry();
        o.geometry.head_dim = 128;
        o.log = log;
        machine = *cuda::DecodeMachine::create(o, std::make_unique<NullDevice>());
      }
      options.max_steps = run == 0 ? kShort : kLong;
      const double began = cpu_seconds();
      const auto result = runtime::replay(workload, options, std::move(machine));
      if (!result) {
        state.SkipWithError(result.error().what.c_str());
        return;
      }
      spent[run] = cpu_seconds() - began;
      reads[run] = result->all.reads;
      for (std::size_t s = kShort; s < log->steps.size(); ++s) listing += log->steps[s].listing;
    }
  }
  constexpr double kSteps = kLong - kShort;
  state.counters["reads/step"] = static_cast<double>(reads[1] - reads[0]) / kSteps;
  state.counters["machine ms/step"] = 1e3 * listing / kSteps;  // wall time, lists alone
  state.counters["host ms/step"] = 1e3 * (spent[1] - spent[0]) / kSteps;
}

BENCHMARK_CAPTURE(step, lru_sim, "lru", false)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(step, lru_listed, "lru", true)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(step, table_listed, "table", true)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(step, sa_listed, "sa", true)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(step, sa_listed_planned_every_8, "sa", true, 8)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
