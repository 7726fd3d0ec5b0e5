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
#include "tools/lehr/predictor_trial.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;

constexpr const char* kCommand = "experiment predictors";
constexpr std::array<const char*, kLayerGroups + 1> kGroupNames{"early", "middle", "late", "all"};

using Masses = runtime::LayerFeed::Masses;
const std::map<std::string, Masses> kMasses{
    {"all", Masses::kMeanAndPeak}, {"mean", Masses::kMean}, {"none", Masses::kNone}};

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> predictors;
  std::vector<std::string> hbm = {"10%", "25%"};
  std::vector<std::string> profiles = {"gh200", "h200-pcie5"};
  std::string select = "mass:0.95";
  std::string weights = "shipped";
  std::uint32_t warmup = 16;
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

struct Replayed {
  std::string profile;
  std::string hbm;
  Bytes page_bytes = 0;
  runtime::StepReport warm;
  runtime::StepReport lru;
};

struct Row {
  std::string trace;
  std::string predictor;
  Trial trial;  ///< budgets are by profile
  std::vector<Replayed> replays;
};

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
  options.warmup_steps = a.warmup;
  LEHR_ASSIGN(const auto result,
              runtime::replay(prepared.workload, options, runtime::make_sim_machine()));
  out = result.warm;
  return {};
}

Status judge(Row& row, const TraceWork& work, const Arguments& a,
             std::span<const predictors::Tensor> weights) {
  TrialOptions options;
  options.budgets.clear();
  for (const auto& p : work)
    options.budgets.push_back(hidden_miss_budget(p->base.runtime.platform));
  options.warmup = a.warmup;
  options.masses = kMasses.at(a.masses);
  options.weights = weights;
  LEHR_ASSIGN(auto named, parse_policy(row.predictor));
  options.parameters = named.second;
  LEHR_ASSIGN(row.trial, try_predictor(*work.front()->selections.front(), named.first, options));
  return {};
}

ordered_json cells_json(const Trial& t, std::size_t budget) {
  ordered_json out;
  for (std::uint32_t k = 0; k < kTrialSteps; ++k) {
    for (std::uint32_t g = 0; g <= kLayerGroups; ++g) {
      const TrialCell& c = t.cells[k][g];
      out.push_back({{"steps_ahead", k + 1},
                     {"layers", kGroupNames[g]},
                     {"precision", c.precision(budget)},
                     {"recall", c.recall(budget)},
                     {"brier", c.brier_score()},
                     {"calibration_error", c.calibration_error()},
                     {"pages", c.pages},
                     {"reads", c.reads}});
    }
  }
  return out;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

ordered_json row_json(const Row& row, const Arguments& a) {
  ordered_json out{{"trace", row.trace}, {"predictor", row.predictor}};
  const Trial& t = row.trial;
  for (std::size_t p = 0; p < a.profiles.size(); ++p) {
    ordered_json one{{"profile", a.profiles[p]}, {"cells", cells_json(t, p)}};
    one["returns"] = {{"read_again_after_a_gap", t.returns},
                      {"named_within_budget", t.fetched[p].reads},
                      {"recall", share(t.fetched[p].reads, t.returns)},
                      {"useful_pages", t.fetched[p].reads},
                      {"wasted_pages", t.fetched[p].pages - t.fetched[p].reads}};
    if (t.numbers_known) one["number_pages_recall"] = share(t.numbers_named, t.numbers);
    one["cpu_seconds_per_step"] = share(t.seconds, t.steps + a.warmup);
    one["cpu_ns_per_page"] = share(1e9 * t.seconds, static_cast<double>(t.work.pages));
    one["flops_per_page"] =
        share(static_cast<double>(t.work.flops), static_cast<double>(t.work.pages));
    out["judged"].push_back(std::move(one));
  }
  for (const Replayed& r : row.replays) {
    const auto bytes = static_cast<double>(r.page_bytes);
    out["replays"].push_back(
        {{"profile", r.profile},
         {"hbm", r.hbm},
         {"policy", "table"},
         {"predicted_seconds", r.warm.total},
         {"lru_predicted_seconds", r.lru.total},
         {"change_to_lru", share(r.warm.total, r.lru.total) - 1},
         {"miss_share",
          share(static_cast<double>(r.warm.misses), static_cast<double>(r.warm.reads))},
         {"prefetch_useful_bytes", bytes * static_cast<double>(r.warm.promoted_used)},
         {"prefetch_wasted_bytes",
          bytes * static_cast<double>(r.warm.promoted -
                                      std::min(r.warm.promoted, r.warm.promoted_used))}});
  }
  return out;
}

void print_trace(const std::string& trace, const std::vector<Row>& rows, const Arguments& a) {
  fmt::print("\n{}\n", trace);
  std::vector<std::string> head{"predictor", "recall",   "precision", "Brier",   "calibration",
                                "recall 2",  "recall 3", "returns",   "numbers", "ns/page"};
  for (const std::string& profile : a.profiles) {
    for (const std::string& hbm : a.hbm) {
      if (a.no_replay) break;
      head.push_back(fmt::format("{} {}", profile, hbm));
      head.emplace_back("misses");
    }
  }
  Table table(head);
  for (const Row& row : rows) {
    const Trial& t = row.trial;
    const auto cell = [&](std::uint32_t k) -> const TrialCell& { return t.cells[k][kLayerGroups]; };
    std::vector<std::string> line{
        row.predictor,
        fmt::format("{:.4f}", cell(0).recall(0)),
        fmt::format("{:.4f}", cell(0).precision(0)),
        fmt::format("{:.5f}", cell(0).brier_score()),
        fmt::format("{:.4f}", cell(0).calibration_error()),
        fmt::format("{:.4f}", cell(1).recall(0)),
        fmt::format("{:.4f}", cell(2).recall(0)),
        fmt::format("{:.4f}", share(t.fetched[0].reads, t.returns)),
        t.numbers_known ? fmt::format("{:.4f}", share(t.numbers_named, t.numbers)) : "-",
        fmt::format("{:.1f}", share(1e9 * t.seconds, static_cast<double>(t.work.pages)))};
    for (const Replayed& r : row.replays) {
      line.push_back(fmt::format("{:+.2f}%", 100 * (share(r.warm.total, r.lru.total) - 1)));
      line.push_back(fmt::format(
          "{:.4f}", share(static_cast<double>(r.warm.misses), static_cast<double>(r.warm.reads))));
    }
    table.add(std::move(line));
  }
  fmt::print("{}", table.text());
}

void print_mean(const std::vector<Row>& rows, const Arguments& a) {
  std::vector<std::string> head{"mean of the traces", "recall", "returns", "Brier", "ns/page"};
  for (const std::string& profile : a.profiles) {
    for (const std::string& hbm : a.hbm) {
      if (!a.no_replay) head.push_back(fmt::format("{} {}", profile, hbm));
    }
  }
  fmt::print("\n");
  Table table(head);
  for (const std::string& name : a.predictors) {
    double n = 0, recall = 0, returns = 0, brier = 0, ns = 0;
    std::vector<double> change(a.profiles.size() * a.hbm.size(), 0);
    for (const Row& row : rows) {
      if (row.predictor != name) continue;
      const Trial& t = row.trial;
      ++n;
      recall += t.cells[0][kLayerGroups].recall(0);
      brier += t.cells[0][kLayerGroups].brier_score();
      returns += share(t.fetched[0].reads, t.returns);
      ns += share(1e9 * t.seconds, static_cast<double>(t.work.pages));
      for (std::size_t i = 0; i < row.replays.size(); ++i)
        change[i] += share(row.replays[i].warm.total, row.replays[i].lru.total) - 1;
    }
    std::vector<std::string> line{name, fmt::format("{:.4f}", recall / n),
                                  fmt::format("{:.4f}", returns / n),
                                  fmt::format("{:.5f}", brier / n), fmt::format("{:.1f}", ns / n)};
    for (const double c : change) {
      if (!a.no_replay) line.push_back(fmt::format("{:+.2f}%", 100 * c / n));
    }
    table.add(std::move(line));
  }
  fmt::print("{}", table.text());
}

Result<std::unique_ptr<Prepared>> prepare_one(const std::string& trace, const std::string& profile,
                                              const Arguments& a) {
  ReplayArguments replay;
  replay.traces = {trace};
  replay.profile = profile;
  replay.select = a.select;
  replay.warmup = a.warmup;
  LEHR_ASSIGN(auto prepared, prepare(replay, {}));
  const auto& recorded = *prepared->traces.front();
  if (recorded.steps() <= a.warmup + kTrialSteps) {
    return corrupt(fmt::format("{}: {} steps, expected more than {}", trace, recorded.steps(),
                               a.warmup + kTrialSteps));
  }
  return prepared;
}

/// Everything that is to be done for one trace: small jobs, so that no core waits for another; the
/// dear predictors stand last in the list and go first.
class TraceJobs {
 public:
  TraceJobs(const Arguments& a, const std::string& trace, const runtime::PredictorWeights& weights)
      : a_(a), weights_(weights), work_(a.profiles.size()) {
    std::vector<Status> done(work_.size());
    parallel(
        work_.size(),
        [&](std::size_t p) {
          auto made = prepare_one(trace, a_.profiles[p], a_);
          if (made) {
            work_[p] = std::move(*made);
          } else {
            done[p] = made.error();
          }
        },
        [](double) {});
    for (const Status& s : done) take(kCommand, s);
    lru_.resize(a_.no_replay ? 0 : work_.size() * a_.hbm.size());
    for (const std::string& name : a_.predictors) {
      rows_.push_back({short_name(trace), name, {}, {}});
      for (std::size_t i = 0; i < lru_.size(); ++i) {
        const Prepared& prepared = *work_[i / a_.hbm.size()];
        rows_.back().replays.push_back({a_.profiles[i / a_.hbm.size()],
                                        a_.hbm[i % a_.hbm.size()],
                                        prepared.page_bytes,
                                        {},
                                        {}});
      }
    }
  }

  std::vector<Row> run(const std::function<void(double)>& progress) {
    std::vector<std::function<Status()>> jobs;
    for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
      Row& r = *row;
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
    for (Row& row : rows_) {
      for (std::size_t i = 0; i < lru_.size(); ++i) row.replays[i].lru = lru_[i];
    }
    return std::move(rows_);
  }

 private:
  Status replay(std::size_t i, const char* policy, const std::string& predictor,
                runtime::StepReport& out) const {
    return replay_with(*work_[i / a_.hbm.size()], a_, a_.hbm[i % a_.hbm.size()], policy, predictor,
                       weights_.tensors(), out);
  }

  const Arguments& a_;
  const runtime::PredictorWeights& weights_;
  TraceWork work_;                        ///< by profile
  std::vector<runtime::StepReport> lru_;  ///< by profile and capacity
  std::vector<Row> rows_;
};

void run(Arguments a) {
  if (a.warmup < kTrialSteps)
    fail_usage(kCommand, invalid("--warmup: expected at least 3, predictors look so far ahead"));
  a.predictors = split_names(a.predictors);
  if (a.predictors.empty()) {
    for (const auto* d : predictors::models()) a.predictors.emplace_back(d->name);
  }
  for (const std::string& name : a.predictors) {
    const auto named = parse_policy(name);
    if (!named) fail_usage(kCommand, named.error());
    const auto known = predictors::make_predictor(named->first, named->second);
    if (!known) fail_usage(kCommand, known.error());
  }
  const auto weights = take(kCommand, runtime::PredictorWeights::named(a.weights));
  std::vector<Row> rows;
  ProgressBar bar("predictors");
  ordered_json report{{"schema", kReportSchema},
                      {"lehr", LEHR_BUILD_VERSION},
                      {"experiment", "predictors"},
                      {"select", a.select},
                      {"warmup_steps", a.warmup},
                      {"weights", a.weights},
                      {"weights_trained_on", std::string(weights.note("trained_on"))},
                      {"weights_command", std::string(weights.note("command"))}};
  for (std::size_t t = 0; t < a.traces.size(); ++t) {
    auto found = TraceJobs(a, a.traces[t], weights).run([&](double part) {
      bar.show((static_cast<double>(t) + part) / static_cast<double>(a.traces.size()));
    });
    if (a.json != "-") {
      print_trace(found.front().trace, found, a);
      std::fflush(stdout);
    }
    std::move(found.begin(), found.end(), std::back_inserter(rows));
  }
  if (a.json != "-") {
    if (a.traces.size() > 1) print_mean(rows, a);
    fmt::print(
        "\nrecall, precision: of the pages that the next step reads, among as many of the "
        "likeliest "
        "as the step before read and the hidden-miss budget of {} more;\nreturns: of the pages "
        "that "
        "were not read in the step before, among the budget's likeliest; numbers: recall of pages "
        "whose tokens hold digits;\nprofile and HBM: predicted time with policy table fed by the "
        "predictor, against lru. Trained models learnt from: {}\n",
        a.profiles.front(), weights.note("trained_on"));
  }
  for (const Row& row : rows) report["rows"].push_back(row_json(row, a));
  if (!a.json.empty()) take(kCommand, write_json(a.json, report));
}

}  // namespace

void add_predictors(CLI::App& experiments) {
  auto a = std::make_shared<Arguments>();
  CLI::App& command = *experiments.add_subcommand(
      "predictors", "What each predictor knows of the next steps, and what that is worth");
  command.add_option("traces", a->traces, "Attention traces")->required();
  command.add_option("--predictors", a->predictors,
                     "Only these: NAME or NAME:KEY=VALUE,..., separated by commas or blanks");
  command.add_option("--hbm", a->hbm, "Capacities of the replays")->delimiter(',');
  command.add_option("--profiles", a->profiles, "Platform profiles")->delimiter(',');
  command.add_option("--select", a->select, "Pages a step reads");
  command.add_option("--weights", a->weights, "Trained weights: \"shipped\" or a file");
  command.add_option("--warmup", a->warmup, "Steps left out of the figures");
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
