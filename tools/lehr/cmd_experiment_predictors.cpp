// SPDX-License-Identifier: Apache-2.0
// lehr experiment predictors: what each predictor knows of the next steps, and what that is worth
// when placement uses it.
#include <algorithm>

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

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> predictors;
  std::vector<std::string> hbm = {"10%", "25%"};
  std::vector<std::string> profiles = {"gh200", "h200-pcie5"};
  std::string select = "mass:0.95";
  std::string weights = "shipped";
  std::uint32_t warmup = 16;
  bool no_replay = false;
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
  Error failed;
};

struct TraceWork {
  std::string name;
  std::vector<std::unique_ptr<Prepared>> by_profile;
  std::vector<runtime::StepReport> lru;  ///< by profile and capacity
};

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
  for (const auto& p : work.by_profile)
    options.budgets.push_back(hidden_miss_budget(p->base.runtime.platform));
  options.warmup = a.warmup;
  options.weights = weights;
  LEHR_ASSIGN(auto named, parse_policy(row.predictor));
  options.parameters = named.second;
  LEHR_ASSIGN(row.trial,
              try_predictor(*work.by_profile.front()->selections.front(), named.first, options));
  for (std::size_t p = 0; p < work.by_profile.size(); ++p) {
    const Prepared& prepared = *work.by_profile[p];
    for (std::size_t h = 0; h < a.hbm.size() && !a.no_replay; ++h) {
      Replayed r{a.profiles[p], a.hbm[h], prepared.page_bytes, {}, work.lru[p * a.hbm.size() + h]};
      LEHR_TRY(replay_with(prepared, a, a.hbm[h], "table", row.predictor, weights, r.warm));
      row.replays.push_back(r);
    }
  }
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
    if (row.trace != trace) continue;
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

std::vector<TraceWork> prepare_all(const Arguments& a) {
  std::vector<TraceWork> out;
  for (const std::string& trace : a.traces) {
    TraceWork work{short_name(trace), {}, {}};
    for (const std::string& profile : a.profiles) {
      ReplayArguments replay;
      replay.traces = {trace};
      replay.profile = profile;
      replay.select = a.select;
      replay.warmup = a.warmup;
      work.by_profile.push_back(take(kCommand, prepare(replay, {})));
      const auto& recorded = *work.by_profile.back()->traces.front();
      if (recorded.steps() <= a.warmup + kTrialSteps) {
        fail(kCommand, invalid(fmt::format("{}: {} steps, expected more than {}", trace,
                                           recorded.steps(), a.warmup + kTrialSteps)));
      }
      for (const std::string& hbm : a.hbm) {
        work.lru.emplace_back();
        if (a.no_replay) continue;
        take(kCommand,
             replay_with(*work.by_profile.back(), a, hbm, "lru", "table", {}, work.lru.back()));
      }
    }
    out.push_back(std::move(work));
  }
  return out;
}

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
  for (const std::string& trace : a.traces) {
    Arguments one = a;
    one.traces = {trace};
    const auto work = prepare_all(one);
    const std::size_t first = rows.size();
    for (const std::string& name : a.predictors) rows.push_back({work[0].name, name, {}, {}, {}});
    std::vector<Status> done(a.predictors.size());
    parallel(
        a.predictors.size(),
        [&](std::size_t i) { done[i] = judge(rows[first + i], work[0], a, weights.tensors()); },
        [&](double part) {
          bar.show((static_cast<double>(first) / static_cast<double>(a.predictors.size()) + part) /
                   static_cast<double>(a.traces.size()));
        });
    for (const Status& s : done) take(kCommand, s);
    if (a.json != "-") {
      print_trace(work[0].name, rows, a);
      std::fflush(stdout);
    }
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
  command.add_option("--json", a->json,
                     "Write the report as JSON to this file (- for standard output)");
  command.callback([a] { run(*a); });
}

}  // namespace lehr::tools
