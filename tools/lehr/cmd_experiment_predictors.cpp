// SPDX-License-Identifier: Apache-2.0
// lehr experiment predictors: what each predictor knows of the next steps, and what that is worth
// when placement uses it.
#include <algorithm>
#include <functional>
#include <map>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "runtime/config/profile.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/predictor_weights.hpp"
#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/name_list.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/predictors_report.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;

constexpr const char* kCommand = "experiment predictors";

using Masses = runtime::LayerFeed::Masses;
const std::map<std::string, Masses> kMasses{
    {"all", Masses::kMeanAndPeak}, {"mean", Masses::kMean}, {"none", Masses::kNone}};

struct Arguments {
  std::vector<std::string> traces;
  PredictorsShape shape;
  std::string select = "mass:0.95";
  std::string weights = "shipped";
  std::uint32_t window = runtime::RuntimeOptions{}.prefetch_window;
  bool no_replay = false;
  std::string masses = "all";
  std::string json;
};

/// What the machine's link may bring in a step for free, as a share of the pages that a step reads.
double hidden_miss_budget(const placement::Platform& p) {
  const LinkId up = p.link(p.home, kHbm);
  if (up == placement::kNoLink) return 0;
  constexpr double kMuch = 1e9;
  const double link = p.links[up].curve.at(kMuch, 1);
  const double hbm = p.hbm.at(kMuch, 1);
  return link / (hbm + link);
}

/// One trace, prepared for each profile.
using TraceWork = std::vector<std::unique_ptr<Prepared>>;

std::string short_name(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string file = path.substr(slash == std::string::npos ? 0 : slash + 1);
  return file.substr(0, file.find('.'));
}

Status replay_with(const Prepared& prepared, const Arguments& a, const std::string& hbm,
                   const char* policy, const std::string& predictor,
                   std::span<const predictors::Tensor> weights, runtime::StepReport& out) {
  LEHR_ASSIGN(runtime::ReplayOptions options, prepared.at(hbm));
  options.runtime.policy = policy;
  LEHR_ASSIGN(auto named, parse_policy(predictor));
  options.runtime.predictor = named.first;
  options.runtime.predictor_parameters = named.second;
  options.runtime.predictor_weights = weights;
  options.warmup_steps = a.shape.warmup;
  LEHR_ASSIGN(const auto result,
              runtime::replay(prepared.workload, options, runtime::make_sim_machine()));
  out = result.warm;
  return {};
}

Status judge(PredictorRow& row, const TraceWork& work, const Arguments& a,
             std::span<const predictors::Tensor> weights) {
  TrialOptions options;
  options.budgets.clear();
  for (const auto& p : work)
    options.budgets.push_back(hidden_miss_budget(p->base.runtime.platform));
  options.warmup = a.shape.warmup;
  options.masses = kMasses.at(a.masses);
  options.weights = weights;
  LEHR_ASSIGN(auto named, parse_policy(row.predictor));
  options.parameters = named.second;
  LEHR_ASSIGN(row.trial, try_predictor(*work.front()->selections.front(), named.first, options));
  return {};
}

Result<std::unique_ptr<Prepared>> prepare_one(const std::string& trace, const std::string& profile,
                                              const Arguments& a) {
  ReplayArguments replay;
  replay.traces = {trace};
  replay.profile = profile;
  replay.select = a.select;
  replay.warmup = a.shape.warmup;
  replay.window = a.window;
  LEHR_ASSIGN(auto prepared, prepare(replay, {}));
  const auto& recorded = *prepared->traces.front();
  if (recorded.steps() <= a.shape.warmup + kTrialSteps) {
    return corrupt(fmt::format("{}: {} steps, expected more than {}", trace, recorded.steps(),
                               a.shape.warmup + kTrialSteps));
  }
  return prepared;
}

/// Everything that is to be done for one trace: small jobs, so that no core waits for another; the
/// dear predictors stand last in the list and go first.
class TraceJobs {
 public:
  TraceJobs(const Arguments& a, const std::string& trace, const runtime::PredictorWeights& weights)
      : a_(a), weights_(weights), work_(a.shape.profiles.size()) {
    std::vector<Status> done(work_.size());
    parallel(
        work_.size(),
        [&](std::size_t p) {
          auto made = prepare_one(trace, a_.shape.profiles[p], a_);
          if (made) {
            work_[p] = std::move(*made);
          } else {
            done[p] = made.error();
          }
        },
        [](double) {});
    for (const Status& s : done) take(kCommand, s);
    lru_.resize(work_.size() * a_.shape.hbm.size());
    for (const std::string& name : a_.shape.predictors) {
      rows_.push_back({short_name(trace), name, {}, {}});
      for (std::size_t i = 0; i < lru_.size(); ++i) {
        const Prepared& prepared = *work_[i / a_.shape.hbm.size()];
        rows_.back().replays.push_back({a_.shape.profiles[i / a_.shape.hbm.size()],
                                        a_.shape.hbm[i % a_.shape.hbm.size()],
                                        prepared.page_bytes,
                                        {},
                                        {}});
      }
    }
  }

  std::vector<PredictorRow> run(const std::function<void(double)>& progress) {
    std::vector<std::function<Status()>> jobs;
    for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
      PredictorRow& r = *row;
      jobs.emplace_back([this, &r] { return judge(r, work_, a_, weights_.tensors()); });
      for (std::size_t i = 0; i < lru_.size(); ++i)
        jobs.emplace_back(
            [this, &r, i] { return replay(i, "table", r.predictor, r.replays[i].warm); });
    }
    for (std::size_t i = 0; i < lru_.size(); ++i)
      jobs.emplace_back([this, i] { return replay(i, "lru", "table", lru_[i]); });
    std::vector<Status> done(jobs.size());
    parallel(
        jobs.size(), [&](std::size_t i) { done[i] = jobs[i](); }, progress);
    for (const Status& s : done) take(kCommand, s);
    for (PredictorRow& row : rows_) {
      for (std::size_t i = 0; i < lru_.size(); ++i) row.replays[i].lru = lru_[i];
    }
    return std::move(rows_);
  }

 private:
  Status replay(std::size_t i, const char* policy, const std::string& predictor,
                runtime::StepReport& out) const {
    return replay_with(*work_[i / a_.shape.hbm.size()], a_, a_.shape.hbm[i % a_.shape.hbm.size()],
                       policy, predictor, weights_.tensors(), out);
  }

  const Arguments& a_;
  const runtime::PredictorWeights& weights_;
  TraceWork work_;                        ///< by profile
  std::vector<runtime::StepReport> lru_;  ///< by profile and capacity
  std::vector<PredictorRow> rows_;
};

void run(Arguments a) {
  if (a.no_replay) a.shape.hbm.clear();
  if (a.shape.warmup < kTrialSteps)
    fail_usage(kCommand, invalid("--warmup: expected at least 3, predictors look so far ahead"));
  a.shape.predictors = split_names(a.shape.predictors);
  if (a.shape.predictors.empty()) {
    for (const auto* d : predictors::models()) a.shape.predictors.emplace_back(d->name);
  }
  for (const std::string& name : a.shape.predictors) {
    const auto named = parse_policy(name);
    if (!named) fail_usage(kCommand, named.error());
    const auto known = predictors::make_predictor(named->first, named->second);
    if (!known) fail_usage(kCommand, known.error());
  }
  const auto weights = take(kCommand, runtime::PredictorWeights::named(a.weights));
  std::vector<PredictorRow> rows;
  ProgressBar bar("predictors");
  ordered_json report{{"schema", kReportSchema},
                      {"lehr", LEHR_BUILD_VERSION},
                      {"experiment", "predictors"},
                      {"select", a.select},
                      {"warmup_steps", a.shape.warmup},
                      {"window", a.window},
                      {"weights", a.weights},
                      {"weights_trained_on", std::string(weights.note("trained_on"))},
                      {"weights_command", std::string(weights.note("command"))}};
  for (std::size_t t = 0; t < a.traces.size(); ++t) {
    auto found = TraceJobs(a, a.traces[t], weights).run([&](double part) {
      bar.show((static_cast<double>(t) + part) / static_cast<double>(a.traces.size()));
    });
    if (a.json != "-") print_trace(found.front().trace, found, a.shape);
    std::move(found.begin(), found.end(), std::back_inserter(rows));
  }
  if (a.json != "-") {
    if (a.traces.size() > 1) print_mean(rows, a.shape);
    print_legend(a.shape, weights.note("trained_on"));
  }
  for (const PredictorRow& row : rows) report["rows"].push_back(row_json(row, a.shape));
  if (!a.json.empty()) take(kCommand, write_json(a.json, report));
}

}  // namespace

void add_predictors(CLI::App& experiments) {
  auto a = std::make_shared<Arguments>();
  CLI::App& command = *experiments.add_subcommand(
      "predictors", "What each predictor knows of the next steps, and what that is worth");
  command.add_option("traces", a->traces, "Attention traces")->required();
  command.add_option("--predictors", a->shape.predictors,
                     "Only these: NAME or NAME:KEY=VALUE,..., separated by commas or blanks");
  command.add_option("--hbm", a->shape.hbm, "Capacities of the replays")->delimiter(',');
  command.add_option("--profiles", a->shape.profiles, "Platform profiles")->delimiter(',');
  command.add_option("--select", a->select, "Pages a step reads");
  command.add_option("--weights", a->weights, "Trained weights: \"shipped\" or a file");
  command.add_option("--warmup", a->shape.warmup, "Steps left out of the figures");
  command
      .add_option("--window", a->window,
                  "Steps ahead over which the replays' odds are averaged; 0: 2 to 5, by step time, "
                  "link time and confidence")
      ->check(CLI::Range(0U, kMaxHorizon));
  command.add_flag("--no-replay", a->no_replay, "Leave out step times");
  command
      .add_option("--masses", a->masses,
                  "What of the masses predictors are shown (step times: all): all, mean or none")
      ->check(CLI::IsMember(kMasses));
  command.add_option("--json", a->json,
                     "Write the report as JSON to this file (- for standard output)");
  command.callback([a] { run(*a); });
}

}  // namespace lehr::tools
