// SPDX-License-Identifier: Apache-2.0
// lehr experiment decode: the whole decode step on a GPU under several policies, beside the same
// kernels without tiering and beside the cache that moves each layer's whole KV every step.
#include <future>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "placement/bounds.hpp"
#include "runtime/machines/cuda/ceilings.hpp"
#include "runtime/machines/cuda/offload.hpp"
#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/decode_set.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "experiment decode";
constexpr const char* kResident = "all in HBM, no tiering";
constexpr const char* kTiered = "all in HBM, tiering on";

struct Arguments {
  ReplayArguments replay;
  std::vector<std::string> policies = {"static", "lru", "lfu-importance", "sa"};
  DecodeOptions gpu;
  std::uint32_t steps = 0;
  std::string timeline;
};

std::unique_ptr<Prepared> prepared_for(const ReplayArguments& arguments) {
  ProgressBar bar("reading traces");
  return take(kCommand, prepare(arguments, [&](double share) { bar.show(share); }));
}

/// The batch that HBM holds alone when the whole one needs the far tier.
std::optional<DecodeOutcome> small_batch(const Arguments& a) {
  ReplayArguments few = a.replay;
  few.sequences = std::max(1U, a.replay.sequences / 4);
  const auto prepared = prepared_for(few);
  DecodeSet set;
  DecodeOptions plain = a.gpu;
  plain.tiering = false;
  set.rows.push_back({kResident, "unlimited", plain, "", {}, {}});
  take(kCommand, set.run(*prepared, a.steps));
  return std::move(set.rows.front().outcome);
}

struct Targets {
  Table table{{"target", "measured", "met"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();

  void add(const std::string& what, const std::string& measured, bool met) {
    table.add({what, measured, met ? "yes" : "NO"});
    json.push_back({{"target", what}, {"measured", measured}, {"met", met}});
  }
};

const DecodeRow* best_online(const DecodeSet& set) {
  const DecodeRow* best = nullptr;
  for (const DecodeRow& row : set.rows) {
    if (!row.outcome || row.hbm.empty()) continue;
    if (best == nullptr || row.outcome->p50() < best->outcome->p50()) best = &row;
  }
  return best;
}

void add_ratio(Targets& t, const DecodeSet& set, const DecodeRow& best, const char* rival) {
  const DecodeRow* other = set.find(rival);
  if (other == nullptr || other == &best) return;
  const double ratio = other->outcome->p50() / best.outcome->p50();
  t.add(fmt::format("{} faster than {}", best.name, rival), fmt::format("{:.2f} x", ratio),
        ratio > 1);
}

Targets judge(const Arguments& a, const DecodeSet& set, const placement::Platform& calibrated,
              const std::vector<Seconds>& offloaded, const std::optional<DecodeOutcome>& few,
              double bound_per_step) {
  Targets t;
  const DecodeRow* resident = set.find(kResident);
  const DecodeRow* tiered = set.find(kTiered);
  const DecodeRow* best = best_online(set);
  if (resident != nullptr && tiered != nullptr) {
    const double cost = tiered->outcome->p50() / resident->outcome->p50() - 1;
    t.add("all pages resident: tiering costs at most 1 %", fmt::format("{:+.2f} %", 100 * cost),
          cost <= 0.01);
  }
  if (best == nullptr) return t;
  const DecodeOutcome& o = *best->outcome;
  const double told = o.p50() / percentile(o.predicted, 0.5);
  t.add(fmt::format("{} at {}: at most 1.10 x its prediction", best->name, best->hbm),
        fmt::format("{:.3f} x", told), told <= 1.10);
  const double against = o.p50() / percentile(predicted_by(o, calibrated), 0.5);
  t.add("the same, the profile calibrated by other rows", fmt::format("{:.3f} x", against),
        against <= 1.10);
  t.add("the model may be trusted with the profile as shipped: steps off by at most 10 % (median)",
        fmt::format("{:.1f} % (p95 {:.1f} %)", 100 * o.steps.median, 100 * o.steps.p95),
        runtime::trusted(o.steps));
  if (bound_per_step > 0) {
    const double ratio = mean(o.measured) / bound_per_step;
    t.add("at most 1.15 x the bound", fmt::format("{:.3f} x", ratio), ratio <= 1.15);
  }
  add_ratio(t, set, *best, "lru");
  add_ratio(t, set, *best, "static");
  if (!offloaded.empty()) {
    const double ratio = percentile(offloaded, 0.5) / o.p50();
    t.add("far faster than moving each layer's whole cache (dense, copy engine)",
          fmt::format("{:.1f} x", ratio), ratio > 1);
  }
  if (few) {
    const double n = std::max(1U, a.replay.sequences / 4);
    const double rate = a.replay.sequences / o.p50() / (n / few->p50());
    t.add(fmt::format("batch {} in the HBM of batch {:.0f}: at least 2.1 x its tokens a second",
                      a.replay.sequences, n),
          fmt::format("{:.2f} x", rate), rate >= 2.1);
  }
  // Where every layer reads over the link, the row whose pages are all in HBM has layers without.
  double disturbed = disturbance(o);
  if (disturbed == 0 && tiered != nullptr) disturbed = disturbance(*tiered->outcome);
  if (disturbed != 0) {
    t.add("layers with migration, reading nothing over the link: at most 3 % longer",
          fmt::format("{:+.2f} %", 100 * disturbed), disturbed <= 0.03);
  }
  const double idle = o.log->repeated.idle;
  if (idle > 0) {
    t.add("control on the critical path (GPU idle between steps given in time): at most 20 us",
          fmt::format("{:.1f} us", idle * 1e6), idle <= 20e-6);
  }
  t.add("p99 at most 1.3 x p50", fmt::format("{:.2f} x", o.p99() / o.p50()),
        o.p99() <= 1.3 * o.p50());
  return t;
}

/// Seconds a step after the warm-up that no policy can go below on the profile.
double bound_of(const Arguments& a, const Prepared& prepared, const std::string& hbm) {
  runtime::ReplayOptions options = take(kCommand, prepared.at(hbm));
  options.max_steps = a.steps;
  if (prepared.kernels_per_layer > 0)
    options.runtime.platform.control_per_layer = prepared.kernels_per_layer;
  options.runtime.weights_bytes += runtime::box_bytes(prepared.geometry, prepared.total_pages);
  const auto instance = take(kCommand, runtime::replay_instance(prepared.workload, options));
  placement::BoundOptions bound_options;
  bound_options.warmup_steps = a.replay.warmup;
  const placement::Bound bound = take(kCommand, placement::lower_bound(instance, bound_options));
  const std::uint32_t steps =
      a.steps != 0 ? std::min(a.steps, prepared.workload.steps()) : prepared.workload.steps();
  const double warm = std::max(1.0, static_cast<double>(steps) - a.replay.warmup);
  return bound.best.without_warmup / warm;
}

std::vector<Seconds> offloaded_cache(const Arguments& a, const Prepared& prepared) {
  runtime::cuda::OffloadedCacheOptions options;
  options.geometry = prepared.geometry;
  options.sequences = static_cast<std::uint32_t>(prepared.workload.sequences.size());
  const auto& meta = prepared.traces.front()->meta();
  options.tokens = meta.prompt_tokens + meta.steps / 2;
  options.weights_bytes = prepared.base.runtime.weights_bytes;
  options.device = a.gpu.gpu;
  return take(kCommand, runtime::cuda::run_offloaded_cache(options)).steps;
}

void run(const Arguments& given) {
  Arguments a = given;
  if (a.replay.sequences == 0)
    a.replay.sequences = static_cast<std::uint32_t>(a.replay.traces.size());
  const auto prepared = prepared_for(a.replay);
  const std::string hbm = a.replay.hbm.front();
  const runtime::cuda::DecodeCeilings ceilings =
      take(kCommand, runtime::cuda::measure_ceilings(a.gpu.gpu));
  // Beside the GPU's work: it needs nothing of it.
  std::future<double> bounded =
      std::async(std::launch::async, [&] { return bound_of(a, *prepared, hbm); });
  DecodeSet set;
  DecodeOptions plain = a.gpu;
  plain.tiering = false;
  set.rows.push_back({kResident, "unlimited", plain, "", {}, {}});
  set.rows.push_back({kTiered, "unlimited", a.gpu, "", {}, {}});
  for (const std::string& policy : a.policies)
    set.rows.push_back({policy, policy, a.gpu, hbm, {}, {}});
  take(kCommand, set.run(*prepared, a.steps));
  const std::vector<Seconds> offloaded = offloaded_cache(a, *prepared);
  const auto few = a.replay.sequences >= 4 ? small_batch(a) : std::nullopt;
  const runtime::Calibration fitted = set.calibrate(*prepared, {kTiered, "lru"});
  const double bound = bounded.get();
  const Targets targets = judge(a, set, fitted.platform, offloaded, few, bound);

  fmt::print("{} sequences, {} pages of {} bytes, {} HBM bytes of weights a step, selection {}\n",
             prepared->workload.sequences.size(), prepared->total_pages, prepared->page_bytes,
             prepared->base.runtime.weights_bytes, a.replay.select);
  fmt::print(
      "ceilings of this run: HBM read {:.0f} GB/s, host memory read in place {:.1f} GB/s, copied "
      "{:.1f} GB/s\n",
      ceilings.hbm / kGB, ceilings.in_place / kGB, ceilings.up / kGB);
  fmt::print("{}", set.table(kResident, fitted.platform, bound));
  fmt::print("bound at {}: {} a step (certified, of the profile)\n", hbm, human_seconds(bound));
  fmt::print("calibrated by '{}' and lru: control {:.1f} us a layer, HBM x {:.2f}, link x {:.2f}\n",
             kTiered, fitted.control_per_layer * 1e6, fitted.hbm_scale, fitted.link_scale);
  fmt::print("moving each layer's whole cache every step: {} (p50)\n",
             human_seconds(percentile(offloaded, 0.5)));
  for (const DecodeRow& row : set.rows) {
    if (!row.outcome) continue;
    fmt::print("{}\n", row.name);
    print_decode(*row.outcome, take(kCommand, prepared->at(row.hbm.empty() ? "100%" : row.hbm)));
  }
  fmt::print("{}", targets.table.text());
  const DecodeRow* best = best_online(set);
  if (!a.timeline.empty() && best != nullptr) {
    take(kCommand, write_timeline(a.timeline, *best->outcome, prepared->base.runtime.platform));
  }
  if (a.replay.json.empty()) return;
  nlohmann::ordered_json report = describe(a.replay, *prepared);
  report["rows"] = set.json(*prepared);
  report["ceilings_gbps"] = {{"hbm_read", ceilings.hbm / kGB},
                             {"host_in_place", ceilings.in_place / kGB},
                             {"host_to_hbm", ceilings.up / kGB}};
  report["calibration"] = {{"control_us_per_layer", fitted.control_per_layer * 1e6},
                           {"hbm_scale", fitted.hbm_scale},
                           {"link_scale", fitted.link_scale}};
  report["offloaded_cache_step_p50_ms"] = percentile(offloaded, 0.5) * 1e3;
  report["bound_ms_per_step"] = bound * 1e3;
  report["targets"] = targets.json;
  take(kCommand, write_json(a.replay.json, report));
}

}  // namespace

void add_decode(CLI::App& experiments) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *experiments.add_subcommand(
      "decode", "Policies on a GPU, beside the kernels without tiering and an offloaded cache");
  arguments->replay.add_to(command);
  command.add_option("--policies", arguments->policies, "Policies to run, a list")->delimiter(',');
  command.add_option("--steps", arguments->steps, "Stop after so many steps (default: all)");
  command.add_option("--gpu", arguments->gpu.gpu, "The GPU, from 0");
  command.add_option("--donor", arguments->gpu.donor,
                     "The GPU whose HBM is the home tier, where the profile says peer");
  command.add_flag("--check-reads", arguments->gpu.check_reads,
                   "Compare every page's contents before it is read");
  command.add_option("--perfetto", arguments->timeline,
                     "Write a timeline of the fastest policy to this file (ui.perfetto.dev)");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
