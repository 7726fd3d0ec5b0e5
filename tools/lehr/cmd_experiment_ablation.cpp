// SPDX-License-Identifier: Apache-2.0
// lehr experiment ablation: all policies on all given traces, capacities, selections and profiles,
// beside bound and oracle, and the shipped policy with each of its features switched off in turn.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "placement/bounds.hpp"
#include "placement/oracle.hpp"
#include "placement/policies/sa_window.hpp"
#include "runtime/machines/sim.hpp"
#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;

constexpr const char* kCommand = "experiment ablation";

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> hbm = {"5%", "10%", "25%", "50%"};
  std::vector<std::string> select = {"mass:0.95", "topk:10%"};
  std::vector<std::string> profiles = {"gh200", "h200-pcie5"};
  std::uint32_t seeds = 5;
  std::uint32_t mixed = 8;
  std::uint32_t stagger = 12;
  std::uint32_t warmup = 16;
  bool window = false;
  std::string json;
};

/// Who takes part, and as what.
struct Contestant {
  std::string label;
  std::string policy;
  Parameters parameters;
  enum class Role { kRival, kOurs, kFeatureOff, kFullKnowledge } role;
  bool seeded = false;
  Parameters predictor;
  bool write_back_once = true;
};

/// Without full knowledge and not ours: what the best rival of a cell is chosen from.
bool is_rival(const placement::PolicyDescriptor& d) {
  const std::string_view name = d.name;
  return !d.traits.needs_future && !d.traits.unlimited && name != "table" && name != "sa" &&
         name != "sa-adaptive" && name != "hit-density";
}

std::vector<Contestant> contestants() {
  std::vector<Contestant> out;
  using Role = Contestant::Role;
  for (const placement::PolicyDescriptor* d : placement::policies()) {
    if (d->traits.unlimited) continue;
    const std::string_view name = d->name;
    const Role role = d->traits.needs_future ? Role::kFullKnowledge
                      : is_rival(*d)         ? Role::kRival
                                             : Role::kOurs;
    out.push_back(
        {d->traits.needs_future ? fmt::format("{} (full knowledge)", name) : std::string(name),
         std::string(name),
         {},
         role,
         name == "sa" || name == "sa-adaptive",
         {}});
  }
  const auto without = [&](const char* label, Parameters parameters, Parameters predictor = {},
                           bool write_back_once = true) {
    out.push_back({fmt::format("table without {}", label), "table", std::move(parameters),
                   Role::kFeatureOff, false, std::move(predictor), write_back_once});
  };
  without("fill on read", {{"fill", 0}});
  without("write-back once", {}, {}, false);
  without("prefetch", {{"prefetch", 1}});
  without("bursts that fetch ahead", {{"ahead", 0}});
  without("importance (mass)", {}, {{"mass", 0}});
  without("company (neighbours, layers)", {}, {{"company", 0}});
  without("order of ticks", {{"order", 0}});
  without("budget of promotions", {{"budget", 0}});
  without("guards", {{"guards", 0}});
  const auto more_time = [&](const char* label, double box) {
    out.push_back({label, "sa", {{"box", box}}, Role::kFeatureOff, false, {}});
  };
  more_time("sa without annealing", 0);
  more_time("sa, box of a whole step", 1);
  return out;
}

struct Figures {
  double misses = 0;
  double reads = 0;
  std::vector<double> seconds;  ///< by seed

  bool played() const { return !seconds.empty(); }
};

struct Cell {
  std::string trace, select, hbm, profile;
  bool mixed = false;
  std::vector<Figures> by;  ///< by contestant
  double bound = 0;
  double oracle = 0;
  std::optional<Error> failed;
  std::optional<placement::WindowPlan> window;
};

double mean(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return v.empty() ? 0 : sum / static_cast<double>(v.size());
}

void play(Cell& cell, const Prepared& prepared, const Arguments& arguments,
          const std::vector<Contestant>& all, std::size_t job) {
  const auto options = prepared.at(cell.hbm);
  if (!options) {
    cell.failed = options.error();
    return;
  }
  if (job == all.size()) {
    const auto instance = runtime::replay_instance(prepared.workload, *options);
    if (!instance) {
      cell.failed = instance.error();
      return;
    }
    placement::BoundOptions bound_options;
    bound_options.warmup_steps = arguments.warmup;
    const auto bound = placement::lower_bound(*instance, bound_options);
    placement::OracleOptions oracle_options;
    oracle_options.warmup_steps = arguments.warmup;
    if (cell.mixed) {  // many pages: less time for each
      bound_options.visit_budget /= 2;
      oracle_options.sweeps = 2;
    }
    const auto oracle = placement::oracle_plan(*instance, oracle_options);
    if (!bound || !oracle) {
      cell.failed = bound ? oracle.error() : bound.error();
      return;
    }
    cell.bound = bound->best.without_warmup;
    cell.oracle = oracle->predicted.without_warmup;
    if (!arguments.window) return;
    placement::WindowOptions window_options;
    window_options.warmup_steps = arguments.warmup;
    window_options.most = 24;
    if (auto plan = placement::anneal_window(*instance, window_options)) cell.window = *plan;
    return;
  }
  const Contestant& c = all[job];
  // Features are switched off under one selection rule and in single sequences: time.
  const bool few = cell.select != arguments.select.front() || cell.mixed;
  if (few && c.role == Contestant::Role::kFeatureOff) return;
  for (std::uint32_t seed = 0; seed < (c.seeded && !few ? arguments.seeds : 1); ++seed) {
    runtime::ReplayOptions own = *options;
    own.runtime.policy = c.policy;
    own.runtime.policy_parameters = c.parameters;
    own.runtime.predictor_parameters = c.predictor;
    own.runtime.write_back_once = c.write_back_once;
    own.runtime.seed = seed + 1;
    own.warmup_steps = arguments.warmup;
    const auto result = runtime::replay(prepared.workload, own, runtime::make_sim_machine());
    if (!result) {
      cell.failed = result.error();
      return;
    }
    Figures& f = cell.by[job];
    f.misses += static_cast<double>(result->warm.misses);
    f.reads += static_cast<double>(result->warm.reads);
    f.seconds.push_back(result->warm.total);
  }
}

/// The least of the rivals in a cell, by misses and by time.
struct Best {
  double misses = 1e300;
  double seconds = 1e300;
};
Best best_rival(const Cell& cell, const std::vector<Contestant>& all) {
  Best best;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role != Contestant::Role::kRival) continue;
    best.misses = std::min(best.misses, cell.by[i].misses / cell.by[i].reads);
    best.seconds = std::min(best.seconds, mean(cell.by[i].seconds));
  }
  return best;
}

std::string percent(double share) { return fmt::format("{:+.1f}%", share * 100); }

std::string summary(const std::vector<Cell>& cells, const std::vector<Contestant>& all,
                    ordered_json& json) {
  std::string text;
  std::map<std::pair<std::string, std::string>, std::vector<const Cell*>> parts;
  std::vector<std::pair<std::string, std::string>> order;
  for (const Cell& c : cells) {
    auto& part = parts[{c.hbm, c.profile}];
    if (part.empty()) order.emplace_back(c.hbm, c.profile);
    part.push_back(&c);
  }
  std::size_t least = all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].policy == "min") least = i;
  }
  for (const auto& key : order) {
    const auto& part = parts[key];
    Table table({"policy", "misses", "closed to min", "over bound", "over oracle",
                 "over best rival", "worst cell", "closed to oracle", "cells lost", "seeds"});
    ordered_json rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
      double misses = 0, over_bound = 0, over_oracle = 0, over_rival = 0, worst = 0,
             rival_misses = 0, min_misses = 0;
      double rival_seconds = 0, own_seconds = 0, oracle_seconds = 0, spread = 0;
      int lost = 0;
      int played = 0;
      for (const Cell* c : part) {
        const Best best = best_rival(*c, all);
        const Figures& f = c->by[i];
        if (!f.played()) continue;
        ++played;
        const double seconds = mean(f.seconds);
        misses += f.misses / f.reads;
        rival_misses += best.misses;
        if (least < all.size()) min_misses += c->by[least].misses / c->by[least].reads;
        over_bound += seconds / c->bound - 1;
        over_oracle += seconds / c->oracle - 1;
        const double ratio = seconds / best.seconds - 1;
        over_rival += ratio;
        worst = std::max(worst, ratio);
        lost += ratio > 0.01 ? 1 : 0;
        rival_seconds += best.seconds;
        own_seconds += seconds;
        oracle_seconds += c->oracle;
        const auto [low, high] = std::minmax_element(f.seconds.begin(), f.seconds.end());
        spread = std::max(spread, (*high - *low) / seconds);
      }
      if (played == 0) continue;
      const auto n = static_cast<double>(played);
      const double closed =
          rival_misses > min_misses ? (rival_misses - misses) / (rival_misses - min_misses) : 0;
      const double closed_time =
          rival_seconds > oracle_seconds
              ? (rival_seconds - own_seconds) / (rival_seconds - oracle_seconds)
              : 0;
      table.add({all[i].label, fmt::format("{:.4f}", misses / n), percent(closed),
                 percent(over_bound / n), percent(over_oracle / n), percent(over_rival / n),
                 percent(worst), percent(closed_time), fmt::format("{}/{}", lost, played),
                 all[i].seeded ? fmt::format("+-{:.2f}%", spread * 50) : std::string("-")});
      rows.push_back({{"policy", all[i].label},
                      {"misses", misses / n},
                      {"closed_to_min", closed},
                      {"over_bound", over_bound / n},
                      {"over_oracle", over_oracle / n},
                      {"over_best_rival", over_rival / n},
                      {"worst_cell", worst},
                      {"closed_to_oracle", closed_time},
                      {"cells", played},
                      {"cells_above_one_percent", lost},
                      {"largest_spread_of_seeds", spread}});
    }
    text += fmt::format("\nHBM {}, {}: {} cells, means; times predicted, without the warm-up\n{}",
                        key.first, key.second, part.size(), table.text());
    json.push_back(
        {{"hbm", key.first}, {"profile", key.second}, {"cells", part.size()}, {"rows", rows}});
  }
  return text;
}

/// What was aimed at, beside what was reached.
struct Target {
  const char* hbm;
  double closed;
};
constexpr Target kTargets[] = {{"5%", 0.92}, {"10%", 0.42}, {"25%", 0.25}, {"50%", 0.15}};

/// Of one policy over all cells: the distance from best rival to min in misses by capacity, to
/// oracle in time, and the worst cell.
std::string verdict(const std::vector<Cell>& cells, const std::vector<Contestant>& all,
                    std::size_t i, std::size_t least, std::size_t lru, ordered_json& json) {
  Table table({"HBM", "closed to min", "target", "worst time", "target", "cells of more misses"});
  double from_rival = 0, to_oracle = 0, from_lru = 0, lru_to_oracle = 0, logs = 0;
  ordered_json rows;
  for (const Target& t : kTargets) {
    double rival = 0, own = 0, min = 0, worst = -1;
    int more = 0, n = 0;
    for (const Cell& c : cells) {
      if (c.hbm != t.hbm || !c.by[i].played()) continue;
      const Best best = best_rival(c, all);
      const double misses = c.by[i].misses / c.by[i].reads;
      rival += best.misses;
      own += misses;
      min += c.by[least].misses / c.by[least].reads;
      worst = std::max(worst, mean(c.by[i].seconds) / best.seconds - 1);
      more += misses >= best.misses ? 1 : 0;
      ++n;
    }
    if (n == 0) continue;
    const double closed = rival > min ? (rival - own) / (rival - min) : 0;
    table.add({t.hbm, percent(closed), percent(t.closed), percent(worst), "+1.0%",
               fmt::format("{}/{}", more, n)});
    rows.push_back({{"hbm", t.hbm},
                    {"closed_to_min", closed},
                    {"target", t.closed},
                    {"worst_time", worst},
                    {"worst_time_target", 0.01},
                    {"cells_of_more_misses", more},
                    {"cells", n}});
  }
  int n = 0;
  for (const Cell& c : cells) {
    if (!c.by[i].played() || !(c.oracle > 0)) continue;
    const Best best = best_rival(c, all);
    const double own = mean(c.by[i].seconds);
    const double start = mean(c.by[lru].seconds);
    from_rival += (best.seconds - own) / c.oracle;
    to_oracle += (best.seconds - c.oracle) / c.oracle;
    from_lru += (start - own) / c.oracle;
    lru_to_oracle += (start - c.oracle) / c.oracle;
    logs += std::log(own / best.seconds);
    ++n;
  }
  const double closed = to_oracle > 0 ? from_rival / to_oracle : 0;
  const double closed_lru = lru_to_oracle > 0 ? from_lru / lru_to_oracle : 0;
  const double ratio = n > 0 ? std::exp(logs / n) - 1 : 0;
  json.push_back({{"policy", all[i].label},
                  {"by_hbm", std::move(rows)},
                  {"closed_to_oracle", closed},
                  {"closed_to_oracle_target", 0.4},
                  {"closed_to_oracle_from_lru", closed_lru},
                  {"closed_to_oracle_from_lru_target", 0.8},
                  {"time_over_best_rival", ratio}});
  return fmt::format(
      "\n{} against the best rival of each cell\n{}to oracle in time, all cells: {} closed (target "
      "+40.0%), from lru {} (target +80.0%); time over the best rivals', geometric mean: {}\n",
      all[i].label, table.text(), percent(closed), percent(closed_lru), percent(ratio));
}

/// The contestant without full knowledge whose times are least over the cells, as a geometric mean.
std::string winner(const std::vector<Cell>& cells, const std::vector<Contestant>& all) {
  std::size_t best = all.size();
  double least = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto role = all[i].role;
    if (role != Contestant::Role::kOurs && role != Contestant::Role::kRival) continue;
    double logs = 0;
    for (const Cell& c : cells) logs += std::log(mean(c.by[i].seconds));
    if (best < all.size() && logs >= least) continue;
    best = i;
    least = logs;
  }
  return best < all.size() ? all[best].label : std::string();
}

ordered_json cell_json(const Cell& cell, const std::vector<Contestant>& all) {
  ordered_json out{
      {"trace", cell.trace},     {"select", cell.select},       {"hbm", cell.hbm},
      {"profile", cell.profile}, {"bound_seconds", cell.bound}, {"oracle_seconds", cell.oracle}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!cell.by[i].played()) continue;
    out["policies"].push_back({{"policy", all[i].label},
                               {"misses", cell.by[i].misses / cell.by[i].reads},
                               {"seconds", cell.by[i].seconds}});
  }
  if (cell.window) {
    out["sa_window"] = {
        {"seconds", cell.window->time.without_warmup},
        {"misses", static_cast<double>(cell.window->time.misses) /
                       static_cast<double>(std::max<std::uint64_t>(1, cell.window->time.visits))},
        {"window", cell.window->choice.window},
        {"share", cell.window->choice.share},
        {"full_knowledge", true}};
  }
  return out;
}

/// The traces that can share a batch with the first; the others are named in a note.
std::vector<std::string> of_one_shape(const std::vector<std::string>& traces,
                                      std::vector<std::string>& notes) {
  std::vector<std::string> out;
  std::optional<KvGeometry> first;
  for (const std::string& file : traces) {
    const auto trace = take(kCommand, formats::AttentionTrace::open(file));
    const KvGeometry g = trace.geometry();
    if (!first) first = g;
    if (g.layers == first->layers && g.kv_heads == first->kv_heads &&
        g.page_tokens == first->page_tokens && g.page_bytes() == first->page_bytes()) {
      out.push_back(file);
    } else {
      notes.push_back(fmt::format("{}: of another shape, not in the mixed batch", file));
    }
  }
  return out;
}

/// One trace (or the mixed batch of all) under one rule and profile.
struct Batch {
  std::string name;
  bool mixed = false;
  ReplayArguments replay;
};

std::vector<Batch> batches(const Arguments& arguments, std::vector<std::string>& notes) {
  std::vector<Batch> out;
  const auto add = [&](std::string name, const std::vector<std::string>& traces,
                       std::uint32_t sequences) {
    for (const std::string& select : arguments.select) {
      for (const std::string& profile : arguments.profiles) {
        Batch b{name, sequences > 1, {}};
        b.replay.traces = traces;
        b.replay.select = select;
        b.replay.profile = profile;
        b.replay.sequences = sequences;
        b.replay.stagger = sequences > 1 ? arguments.stagger : 0;
        b.replay.warmup = arguments.warmup;
        out.push_back(std::move(b));
      }
    }
  };
  for (const std::string& trace : arguments.traces) {
    const std::size_t slash = trace.find_last_of('/');
    const std::string file = trace.substr(slash == std::string::npos ? 0 : slash + 1);
    add(file.substr(0, file.find('.')), {trace}, 1);
  }
  if (arguments.mixed > 1) {
    add(fmt::format("mixed-{}", arguments.mixed), of_one_shape(arguments.traces, notes),
        arguments.mixed);
  }
  return out;
}

void run(const Arguments& arguments) {
  const std::vector<Contestant> all = contestants();
  std::vector<Cell> cells;
  ordered_json report{{"schema", kReportSchema},
                      {"lehr", LEHR_BUILD_VERSION},
                      {"experiment", "ablation"},
                      {"seeds", arguments.seeds},
                      {"warmup_steps", arguments.warmup}};
  std::vector<std::string> notes;
  const std::vector<Batch> work = batches(arguments, notes);
  ProgressBar bar("ablation");
  for (std::size_t b = 0; b < work.size(); ++b) {
    auto prepared = prepare(work[b].replay, {});
    if (!prepared) fail(kCommand, prepared.error());
    const std::size_t first = cells.size();
    for (const std::string& hbm : arguments.hbm) {
      Cell cell;
      cell.trace = work[b].name;
      cell.select = work[b].replay.select;
      cell.hbm = hbm;
      cell.profile = work[b].replay.profile;
      cell.mixed = work[b].mixed;
      cell.by.resize(all.size());
      cells.push_back(std::move(cell));
    }
    const std::size_t jobs = all.size() + 1;
    parallel(
        arguments.hbm.size() * jobs,
        [&](std::size_t i) {
          // Bound and oracle first: they take longest.
          play(cells[first + i / jobs], **prepared, arguments, all, jobs - 1 - i % jobs);
        },
        [&](double share) {
          bar.show((static_cast<double>(b) + share) / static_cast<double>(work.size()));
        });
    for (std::size_t i = first; i < cells.size(); ++i) {
      if (cells[i].failed) fail(kCommand, *cells[i].failed);
    }
  }
  ordered_json parts;
  std::string text = summary(cells, all, parts);
  report["summary"] = std::move(parts);
  std::size_t min = all.size(), lru = all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].policy == "min") min = i;
    if (all[i].policy == "lru") lru = i;
  }
  ordered_json verdicts;
  for (std::size_t i = 0; i < all.size() && min < all.size() && lru < all.size(); ++i) {
    if (all[i].role == Contestant::Role::kOurs) {
      text += verdict(cells, all, i, min, lru, verdicts);
    }
  }
  report["verdicts"] = std::move(verdicts);
  report["fastest_without_full_knowledge"] = winner(cells, all);
  text += fmt::format("\nfastest without full knowledge, geometric mean over all cells: {}\n",
                      winner(cells, all));
  for (const Cell& cell : cells) report["cells"].push_back(cell_json(cell, all));
  report["notes"] = notes;
  if (arguments.json != "-") {
    for (const std::string& note : notes) fmt::print("note: {}\n", note);
    fmt::print("{}", text);
    if (arguments.window) {
      double window = 0, oracle = 0;
      for (const Cell& c : cells) {
        if (!c.window) continue;
        window += c.window->time.without_warmup;
        oracle += c.oracle;
      }
      if (oracle > 0) {
        fmt::print(
            "\nsa-window (full knowledge, an upper estimate and no bound): {} over oracle, all "
            "cells\n",
            percent(window / oracle - 1));
      }
    }
  }
  if (!arguments.json.empty()) take(kCommand, write_json(arguments.json, report));
}

}  // namespace

void add_ablation(CLI::App& experiments) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *experiments.add_subcommand(
      "ablation", "Every policy against bound and oracle, and features switched off in turn");
  command.add_option("traces", arguments->traces, "Attention traces")->required();
  command.add_option("--hbm", arguments->hbm, "Capacities")->delimiter(',');
  command.add_option("--select", arguments->select, "Selection rules")->delimiter(',');
  command.add_option("--profiles", arguments->profiles, "Platform profiles")->delimiter(',');
  command.add_option("--seeds", arguments->seeds, "Seeds of what draws")
      ->check(CLI::Range(1U, 100U));
  command
      .add_option("--mixed", arguments->mixed,
                  "Sequences of one more batch, of all traces of one shape in turn; 0: none")
      ->check(CLI::Range(0U, 256U));
  command.add_option("--stagger", arguments->stagger,
                     "Steps between the starts of that batch's sequences");
  command.add_option("--warmup", arguments->warmup, "Steps left out of the figures");
  command.add_flag("--window", arguments->window,
                   "Also anneal the published window scheme (full knowledge; slow)");
  command.add_option("--json", arguments->json,
                     "Write the report as JSON to this file (- for standard output)");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
