// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace lehr::tools {

/// Exit codes of the lehr command.
inline constexpr int kExitFailure = 1;  ///< the work could not be done
inline constexpr int kExitUsage = 2;    ///< the command line is wrong

// Each adds one subcommand to the application. The work is done in its callback, which prints one
// line "lehr COMMAND: what, where, what was expected" to stderr on failure and throws
// CLI::RuntimeError.
void add_replay(CLI::App& app);
void add_compare(CLI::App& app);
void add_experiment(CLI::App& app);
void add_bound(CLI::App& app);
void add_inspect(CLI::App& app);
void add_cut(CLI::App& app);
void add_record(CLI::App& app);
void add_profiles(CLI::App& app);
void add_probe(CLI::App& app);

}  // namespace lehr::tools
