// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/serving/group_replay.hpp"
#include "tools/lehr/decode_run.hpp"
#include "tools/lehr/replay_options.hpp"

namespace lehr::tools {

/// lehr replay --gpus N: how the work is divided.
struct GroupArguments {
  std::uint32_t gpus = 1;
  std::string split = "heads";
  std::vector<double> budget;  ///< shares of --hbm, one a GPU; empty: equal
  std::vector<double> deal;    ///< shares of what is divided; empty: equal
  std::uint32_t rebalance = 0;
  std::uint32_t at_once = 1;
  double least_gain = 0.05;
  bool turns = false;

  void add_to(CLI::App& command);
  bool asked() const { return gpus > 1; }
  /// Whether something was said that only several GPUs have.
  bool divides() const {
    return split != "heads" || !budget.empty() || !deal.empty() || rebalance != 0 || turns;
  }
};

/// What a group runs on.
struct GroupMachines {
  std::string machine = "sim";  ///< sim, host or cuda
  std::string nvme_directory;
  DecodeOptions gpu;  ///< `gpu` is the first of them
};

/// The replay of `options` (the whole group's capacities) over the GPUs. HBM is divided by budget;
/// the tiers below are the host's: each GPU may use all of them where they hold everything, else
/// its share.
Result<serving::GroupReplayOptions> group_options(const GroupArguments& arguments,
                                                  const GroupMachines& machines,
                                                  const Prepared& prepared,
                                                  const runtime::ReplayOptions& options);

/// What people read, and the report's cell.
std::string group_text(const serving::GroupOutcome& outcome, const GroupArguments& arguments,
                       const serving::GroupReplayOptions& options);
nlohmann::ordered_json group_figures(const serving::GroupOutcome& outcome,
                                     const GroupArguments& arguments,
                                     const serving::GroupReplayOptions& options,
                                     const runtime::ReplayOptions& whole, Bytes page_bytes);

}  // namespace lehr::tools
