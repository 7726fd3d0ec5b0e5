// SPDX-License-Identifier: Apache-2.0
// lehr experiment nvlink-decode: HBM held to a budget, another GPU's HBM as the far tier over
// NVLink (about the link that the published setting has to its DRAM), a sweep of sparsity; measured
// and predicted step times side by side, and the ratios to static beside the published one.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/decode_set.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "experiment nvlink-decode";
constexpr double kPublishedBest = 5.87;  ///< over static, modelled, at its best sparsity

/// Names of rows, and what stands behind them. `min` knows the future: an oracle, not a rival.
struct Scheme {
  const char* name;
  const char* policy;
  bool online;
};
constexpr Scheme kSchemes[] = {{"static", "static", false},
                               {"reactive (lru)", "lru", true},
                               {"page-granular (lfu-importance)", "lfu-importance", true},
                               {"sa", "sa", true},
                               {"oracle (min)", "min", false}};

struct Arguments {
  ReplayArguments replay;
  std::vector<double> sparsity = {60, 80, 90, 95};
  DecodeOptions gpu;
  std::uint32_t steps = 0;
};

struct Sweep {
  Table table{{"sparsity", "scheme", "measured p50", "predicted p50", "error p50", "calibrated",
               "its error", "measured / static", "predicted / static"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  double best_ratio = 0;   ///< of sa over static
  double worst_error = 0;  ///< of all medians
  double worst_calibrated = 0;
  bool sa_is_fastest = true;  ///< of the online ones
};

void add_rows(Sweep& sweep, const DecodeSet& set, const Prepared& prepared, double sparsity) {
  const DecodeRow* fixed = set.find("static");
  const DecodeRow* sa = set.find("sa");
  const runtime::Calibration fitted = set.calibrate(prepared, {"static", "reactive (lru)"});
  for (const Scheme& scheme : kSchemes) {
    const DecodeRow* row = set.find(scheme.name);
    if (row == nullptr || fixed == nullptr) continue;
    const DecodeOutcome& o = *row->outcome;
    const double predicted = percentile(o.predicted, 0.5);
    const double ratio = fixed->outcome->p50() / o.p50();
    const double foretold = percentile(fixed->outcome->predicted, 0.5) / predicted;
    const std::vector<Seconds> again = predicted_by(o, fitted.platform);
    const runtime::ErrorQuantiles left = runtime::relative_errors(again, o.measured);
    sweep.worst_calibrated = std::max(sweep.worst_calibrated, left.median);
    sweep.table.add({fmt::format("{:.0f} %", sparsity), scheme.name, human_seconds(o.p50()),
                     human_seconds(predicted), fmt::format("{:.1f} %", 100 * o.steps.median),
                     human_seconds(percentile(again, 0.5)),
                     fmt::format("{:.1f} %", 100 * left.median), fmt::format("{:.2f} x", ratio),
                     fmt::format("{:.2f} x", foretold)});
    sweep.worst_error = std::max(sweep.worst_error, o.steps.median);
    if (row == sa) sweep.best_ratio = std::max(sweep.best_ratio, ratio);
    if (scheme.online && sa != nullptr && o.p50() < 0.995 * sa->outcome->p50())
      sweep.sa_is_fastest = false;
  }
  sweep.json.push_back({{"sparsity", sparsity}, {"rows", set.json(prepared)}});
}

void run(const Arguments& a) {
  Sweep sweep;
  nlohmann::ordered_json report;
  for (const double sparsity : a.sparsity) {
    ReplayArguments replay = a.replay;
    replay.select = fmt::format("topk:{}", 1 - sparsity / 100);
    std::unique_ptr<Prepared> prepared;
    {
      ProgressBar bar("reading traces");
      prepared = take(kCommand, prepare(replay, [&](double share) { bar.show(share); }));
    }
    const placement::Platform& platform = prepared->base.runtime.platform;
    if (platform.tiers[platform.home].name != "peer") {
      fail_usage(kCommand,
                 invalid(fmt::format("--profile {}: its home tier is {}, expected peer",
                                     a.replay.profile, platform.tiers[platform.home].name)));
    }
    if (report.is_null()) report = describe(a.replay, *prepared);
    DecodeSet set;
    for (const Scheme& s : kSchemes)
      set.rows.push_back({s.name, s.policy, a.gpu, a.replay.hbm.front(), {}, {}});
    take(kCommand, set.run(*prepared, a.steps));
    add_rows(sweep, set, *prepared, sparsity);
  }
  fmt::print("{}", sweep.table.text());
  fmt::print("predicted within 10 % of measured (medians): worst {:.1f} %: {}\n",
             100 * sweep.worst_error, sweep.worst_error <= 0.10 ? "met" : "NOT met");
  fmt::print("the same, the profile calibrated by static and lru: worst {:.1f} %: {}\n",
             100 * sweep.worst_calibrated, sweep.worst_calibrated <= 0.10 ? "met" : "NOT met");
  fmt::print("sa at least as fast as every online rival (to 0.5 %): {}\n",
             sweep.sa_is_fastest ? "met" : "NOT met");
  fmt::print("sa over static: up to {:.2f} x measured here; published, modelled: up to {} x\n",
             sweep.best_ratio, kPublishedBest);
  if (a.replay.json.empty()) return;
  report["sweep"] = sweep.json;
  report["sa_over_static"] = sweep.best_ratio;
  report["published_sa_over_static"] = kPublishedBest;
  take(kCommand, write_json(a.replay.json, report));
}

}  // namespace

void add_nvlink_decode(CLI::App& experiments) {
  auto arguments = std::make_shared<Arguments>();
  arguments->replay.profile = "h200-nvlink";
  CLI::App& command = *experiments.add_subcommand(
      "nvlink-decode", "Another GPU's HBM as the far tier: a sweep of sparsity, measured");
  arguments->replay.add_to(command);
  command
      .add_option("--sparsity", arguments->sparsity,
                  "Per cent of the pages that a step leaves out, a list (replaces --select)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 99.9));
  command.add_option("--steps", arguments->steps, "Stop after so many steps (default: all)");
  command.add_option("--gpu", arguments->gpu.gpu, "The GPU that attends, from 0");
  command.add_option("--donor", arguments->gpu.donor, "The GPU whose HBM is the far tier");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
