// SPDX-License-Identifier: Apache-2.0
// lehr compare: every policy on the same workload, capacity and profile, beside bound and oracle.
#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/lehr/certify.hpp"
#include "tools/lehr/compare_requests.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/name_list.hpp"
#include "tools/lehr/parallel.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/table.hpp"
#include "tools/lehr/terminal.hpp"
#include "tools/lehr/trace_kind.hpp"

namespace lehr::tools {

namespace {

using nlohmann::ordered_json;
using runtime::ReplayOptions;
using runtime::ReplayResult;

constexpr const char* kCommand = "compare";

struct Arguments {
  ReplayArguments replay;
  RequestArguments requests;
  std::vector<std::string> policies;
  std::uint32_t oracle_seeds = 1;
  std::vector<const CLI::Option*> of_attention;  ///< options that say nothing of request traces
  std::vector<const CLI::Option*> of_requests;   ///< and the other way round
};

void refuse(const std::vector<const CLI::Option*>& options, const char* their_kind,
            const std::string& file, const char* kind) {
  for (const CLI::Option* option : options) {
    if (option->count() == 0) continue;
    fail_usage(kCommand, invalid(fmt::format("{} is for {} traces; {} is {} trace",
                                             option->get_name(), their_kind, file, kind)));
  }
}

/// All that runs at one HBM capacity.
struct Cell {
  std::string hbm;
  ReplayOptions options;
  std::vector<std::optional<Result<ReplayResult>>> results;  ///< by policy
  std::optional<Result<Certified>> certified;
};

ReplayOptions with_policy(const Cell& cell, const std::pair<std::string, Parameters>& policy,
                          std::uint64_t total_pages) {
  ReplayOptions options = cell.options;
  options.runtime.policy = policy.first;
  options.runtime.policy_parameters = policy.second;
  const auto descriptor = placement::find_policy(policy.first);
  if (descriptor && (*descriptor)->traits.unlimited) {
    options.runtime.tier_pages[kHbm] = static_cast<std::uint32_t>(total_pages);
  }
  return options;
}

Policies chosen_policies(const std::vector<std::string>& names) {
  Policies out;
  for (const std::string& name : split_names(names)) {
    const auto policy = parse_policy(name);
    if (!policy) fail_usage(kCommand, policy.error());
    const auto made = placement::make_policy(policy->first, policy->second);
    if (!made) fail_usage(kCommand, made.error());
    out.push_back(*policy);
  }
  if (!out.empty()) return out;
  for (const placement::PolicyDescriptor* d : placement::policies()) out.push_back({d->name, {}});
  return out;
}

std::string gap(double seconds, double reference) {
  return reference > 0 ? fmt::format("{:+.1f}%", (seconds / reference - 1) * 100) : "-";
}

std::string table_row_label(const placement::PolicyDescriptor& d) {
  if (d.traits.needs_instance) return std::string(d.name) + " (upper estimate)";
  return d.traits.needs_future ? std::string(d.name) + " (oracle)" : d.name;
}

/// What a table shows: the steps after the warm-up where there are any, else all.
struct Shown {
  const runtime::StepReport& report;
  double steps, tokens, bound, oracle;
  std::vector<double> seconds;  ///< of each step
};

Shown shown(const Cell& cell, const ReplayResult& r) {
  const bool warm = r.warm_steps > 0;
  const placement::BoundValue& bound = (*cell.certified)->bound.best;
  const placement::ScheduleTime& oracle = (*cell.certified)->oracle.predicted;
  const auto first =
      r.step_seconds.begin() + (warm ? static_cast<std::ptrdiff_t>(r.steps - r.warm_steps) : 0);
  return {warm ? r.warm : r.all,
          static_cast<double>(warm ? r.warm_steps : r.steps),
          static_cast<double>(warm ? r.warm_tokens : r.tokens),
          warm ? bound.without_warmup : bound.total,
          warm ? oracle.without_warmup : oracle.total,
          {first, r.step_seconds.end()}};
}

std::vector<std::string> table_row(const Cell& cell, const placement::PolicyDescriptor& policy,
                                   const ReplayResult& result, Bytes page_bytes) {
  const Shown s = shown(cell, result);
  const runtime::StepReport& w = s.report;
  const placement::Platform& platform = cell.options.runtime.platform;
  double up = 0;
  double down = 0;
  for (std::size_t l = 0; l < platform.links.size(); ++l) {
    if (platform.links[l].to == kHbm) up += static_cast<double>(w.link[l].bytes);
    if (platform.links[l].from == kHbm) down += static_cast<double>(w.link[l].bytes);
  }
  const ReadBytes read(w, page_bytes, result.lowering);
  return {table_row_label(policy),
          fmt::format("{:.1f}", s.tokens / w.total),
          human_seconds(percentile(s.seconds, 0.5)),
          human_seconds(percentile(s.seconds, 0.99)),
          human_seconds(w.exposed / s.steps),
          fmt::format("{:.2f}%", 100.0 * read.hit_rate()),
          human_bytes(up / s.steps),
          human_bytes(down / s.steps),
          up > 0 ? fmt::format("{:.0f}%", 100 * std::min(1.0, read.useful / up)) : "-",
          policy.traits.unlimited ? "-" : gap(w.total, s.bound),
          policy.traits.unlimited ? "-" : gap(w.total, s.oracle)};
}

std::string print_cell(const Cell& cell, const Policies& policies, Bytes page_bytes) {
  Table table({"policy", "tok/s", "step p50", "p99", "exposed/step", "byte hits", "to HBM/step",
               "from HBM/step", "useful", "over bound", "over oracle"});
  for (std::size_t i = 0; i < policies.size(); ++i) {
    table.add(table_row(cell, **placement::find_policy(policies[i].first), **cell.results[i],
                        page_bytes));
  }
  return table.text();
}

ordered_json cell_json(const Cell& cell, const Policies& policies, Bytes page_bytes) {
  ordered_json out;
  out["hbm"] = cell.hbm;
  out["hbm_pages"] = cell.options.runtime.tier_pages[kHbm];
  const placement::Bound& bound = (*cell.certified)->bound;
  for (const placement::BoundValue& v : bound.each) {
    out["bounds"].push_back(
        {{"name", v.name}, {"seconds", v.total}, {"seconds_without_warmup", v.without_warmup}});
  }
  out["best_bound"] = {{"name", bound.best.name},
                       {"seconds", bound.best.total},
                       {"seconds_without_warmup", bound.best.without_warmup}};
  const placement::OraclePlan& oracle = (*cell.certified)->oracle;
  out["oracle"] = {{"seconds", oracle.predicted.total},
                   {"seconds_without_warmup", oracle.predicted.without_warmup},
                   {"seconds_by_seed", oracle.by_seed}};
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const ReplayResult& r = **cell.results[i];
    ordered_json row = figures(r, cell.options, page_bytes);
    const auto& traits = (*placement::find_policy(policies[i].first))->traits;
    row["full_knowledge"] = traits.needs_future;
    row["parameters"] = policies[i].second;
    if (!traits.unlimited && bound.best.total > 0) {
      row["over_oracle"] = r.all.total / oracle.predicted.total - 1;
      if (oracle.predicted.without_warmup > 0)
        row["over_oracle_without_warmup"] = r.warm.total / oracle.predicted.without_warmup - 1;
      row["over_bound"] = r.all.total / bound.best.total - 1;
      if (bound.best.without_warmup > 0)
        row["over_bound_without_warmup"] = r.warm.total / bound.best.without_warmup - 1;
    }
    out["policies"].push_back(std::move(row));
  }
  return out;
}

/// Whether the only file is a request trace; then it was compared as one.
bool compared_requests(const Arguments& arguments, const Policies& policies) {
  for (const std::string& file : arguments.replay.traces) {
    if (is_attention_trace({}, file)) continue;  // by its name
    const auto contents =
        take(kCommand, formats::FileContents::open(file, formats::kDefaultTraceLimit));
    if (is_attention_trace(contents.bytes(), file)) continue;
    if (arguments.replay.traces.size() > 1)
      fail(kCommand, invalid(file + ": is a request trace, expected it alone"));
    refuse(arguments.of_attention, "attention", file, "a request");
    compare_requests(file, arguments.requests, policies, arguments.policies.empty(),
                     arguments.replay.json);
    return true;
  }
  return false;
}

/// How far the oracles of several seeds lie apart.
std::string spread(const placement::OraclePlan& oracle) {
  if (oracle.by_seed.size() < 2) return "";
  const auto [least, most] = std::minmax_element(oracle.by_seed.begin(), oracle.by_seed.end());
  return fmt::format("oracle: best of {} seeds, the worst {:.2f}% above\n", oracle.by_seed.size(),
                     100 * (*most / *least - 1));
}

std::vector<Cell> fill_cells(const Arguments& arguments, const Prepared& prepared,
                             const Policies& policies) {
  std::vector<Cell> cells;
  for (const std::string& hbm : arguments.replay.hbm) {
    cells.push_back({hbm, take(kCommand, prepared.at(hbm)), {}, {}});
    cells.back().results.resize(policies.size());
  }
  ProgressBar bar("replaying");
  const std::size_t jobs = policies.size() + 1;  // bound and oracle come first: they take longest
  parallel(
      cells.size() * jobs,
      [&](std::size_t i) {
        Cell& cell = cells[i / jobs];
        const std::size_t job = i % jobs;
        if (job == 0) {
          cell.certified =
              certify(prepared.workload, cell.options,
                      {.seed = arguments.replay.seed + 1, .seeds = arguments.oracle_seeds});
        } else {
          cell.results[job - 1] = runtime::replay_through_api(
              prepared.workload, with_policy(cell, policies[job - 1], prepared.total_pages),
              {"sim", arguments.replay.profile, {}});
        }
      },
      [&](double share) { bar.show(share); });
  for (const Cell& cell : cells) {
    if (!*cell.certified) fail(kCommand, cell.certified->error());
    for (const auto& result : cell.results) {
      if (!*result) fail(kCommand, result->error());
    }
  }
  return cells;
}

std::string cell_title(const Cell& cell, const Arguments& arguments, const Prepared& prepared) {
  const placement::BoundValue& bound = (*cell.certified)->bound.best;
  const std::uint32_t steps = prepared.workload.steps();
  const std::uint32_t first = arguments.replay.warmup < steps ? arguments.replay.warmup : 0;
  return fmt::format(
      "\nHBM {} = {} of {} pages; bound {} {} a step; predicted, steps {} to {}\n{}", cell.hbm,
      cell.options.runtime.tier_pages[kHbm], prepared.total_pages, bound.name,
      human_seconds((first > 0 ? bound.without_warmup : bound.total) / (steps - first)), first,
      steps - 1, spread((*cell.certified)->oracle));
}

void run(const Arguments& arguments) {
  const Policies policies = chosen_policies(arguments.policies);
  if (compared_requests(arguments, policies)) return;
  refuse(arguments.of_requests, "request", arguments.replay.traces.front(), "an attention");
  std::unique_ptr<Prepared> prepared;
  {
    ProgressBar bar("reading traces");
    prepared = take(kCommand, prepare(arguments.replay, [&](double share) { bar.show(share); }));
  }
  ordered_json report = describe(arguments.replay, *prepared);
  std::string text = fmt::format("profile {}, selection {}, {} sequence(s), {} bytes a page\n",
                                 prepared->base.runtime.platform.name, arguments.replay.select,
                                 prepared->workload.sequences.size(), prepared->page_bytes);
  for (const std::string& notice : prepared->notices) text += fmt::format("note: {}\n", notice);
  for (const Cell& cell : fill_cells(arguments, *prepared, policies)) {
    text += cell_title(cell, arguments, *prepared);
    text += print_cell(cell, policies, prepared->page_bytes);
    report["cells"].push_back(cell_json(cell, policies, prepared->page_bytes));
  }
  if (arguments.replay.json != "-") print(kCommand, text);
  if (!arguments.replay.json.empty()) take(kCommand, write_json(arguments.replay.json, report));
}

}  // namespace

void add_compare(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command =
      *app.add_subcommand("compare", "Replay a trace under every policy and compare");
  arguments->replay.add_to(command);
  command
      .add_option("--oracle-seeds", arguments->oracle_seeds,
                  "Runs of the offline oracle with different seeds; the spread is shown")
      ->check(CLI::Range(1U, 64U));
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name != "traces" && name != "--json" && name != "--help")
      arguments->of_attention.push_back(option);
  }
  command.add_option("--policies", arguments->policies,
                     "Only these: NAME or NAME:KEY=VALUE,..., separated by commas or blanks");
  arguments->of_requests = {
      command
          .add_option("--cache", arguments->requests.cache,
                      "Request traces: cache sizes, as shares of the distinct blocks or in blocks")
          ->delimiter(','),
      command.add_option("--evict", arguments->requests.evict,
                         "Request traces: any block, or leaf (after its descendants only)"),
      command
          .add_option("--block-tokens", arguments->requests.block_tokens,
                      "Request traces: tokens a block where the trace does not say")
          ->check(CLI::Range(1U, 1U << 20))};
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
