// SPDX-License-Identifier: Apache-2.0
// lehr experiment ablation: all policies on all given traces, capacities, selections and profiles,
// beside bound and oracle, and the shipped policy with each of its features switched off in turn.
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/lehr/ablation.hpp"
#include "tools/lehr/cmd_experiment.hpp"
#include "tools/lehr/fail.hpp"
#include "tools/lehr/progress.hpp"
#include "tools/lehr/report.hpp"
#include "tools/lehr/terminal.hpp"

namespace lehr::tools {

namespace {

constexpr const char* kCommand = "experiment ablation";

void run(const ablation::Arguments& arguments) {
  if (!arguments.json.empty()) take(kCommand, can_write_json(arguments.json));
  Result<ablation::Results> results = [&] {
    ProgressBar bar("ablation");
    return ablation::play(arguments, [&](double share) { bar.show(share); });
  }();
  if (!results) fail(kCommand, results.error());
  if (arguments.json != "-") print(kCommand, ablation::text(*results));
  if (arguments.json.empty()) return;
  take(kCommand, write_json(arguments.json, ablation::json(arguments, *results)));
}

}  // namespace

void add_ablation(CLI::App& experiments) {
  auto arguments = std::make_shared<ablation::Arguments>();
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
  command.add_option("--json", arguments->json,
                     "Write the report as JSON to this file (- for standard output)");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace lehr::tools
