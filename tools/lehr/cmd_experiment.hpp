// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace lehr::tools {

// The experiments of `lehr experiment`, a subcommand each.
void add_ablation(CLI::App& experiments);
void add_decode(CLI::App& experiments);
void add_gh200_decode(CLI::App& experiments);
void add_nvlink_decode(CLI::App& experiments);
void add_predictors(CLI::App& experiments);

}  // namespace lehr::tools
