// SPDX-License-Identifier: Apache-2.0
// lehr experiment: studies of many replays, each a subcommand.
#include "tools/lehr/cmd_experiment.hpp"

#include <CLI/CLI.hpp>

#include "tools/lehr/commands.hpp"

namespace lehr::tools {

void add_experiment(CLI::App& app) {
  CLI::App& experiments = *app.add_subcommand("experiment", "Studies of many replays");
  experiments.require_subcommand(1);
  add_ablation(experiments);
  add_decode(experiments);
  add_gh200_decode(experiments);
  add_nvlink_decode(experiments);
  add_predictors(experiments);
}

}  // namespace lehr::tools
