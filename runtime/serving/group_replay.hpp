// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "placement/division.hpp"
#include "runtime/replay/replay.hpp"
#include "runtime/serving/split.hpp"

namespace lehr::serving {

/// The machine of a device, for a runtime of these options.
using MakeMachine = std::function<Result<std::unique_ptr<runtime::Machine>>(
    std::uint32_t device, const runtime::RuntimeOptions& options)>;

struct GroupReplayOptions {
  Split split = Split::kHeads;
  /// One a device: platform, capacities, policy. Weights are the whole model's: each device reads
  /// those of what it holds.
  std::vector<runtime::RuntimeOptions> devices;
  std::vector<double> weights;        ///< one a device, of the first dealing; empty: equal
  std::uint32_t rebalance_every = 0;  ///< steps; 0: never
  placement::RebalanceRule rule;
  /// Promotions cross on one device at a time, step by step in turn.
  bool take_turns = false;
  /// Machines that attend have a geometry of their own part, so its units cannot change.
  bool own_geometry = false;
  /// What a device sends to another crosses this; several links: one after the other.
  std::vector<placement::Link> between;
  KvGeometry results;  ///< shape of what is sent when results are merged; empty: the workload's
  std::uint32_t warmup_steps = 16;  ///< as ReplayOptions
  std::uint32_t max_steps = 0;
  MakeMachine make;
};

/// Units that changed device between two steps.
struct Migration {
  std::uint32_t step = 0;                    ///< before this one
  std::uint32_t to = 0;                      ///< device
  std::vector<std::uint32_t> before, after;  ///< units of every device
  std::uint64_t pages = 0;                   ///< of the units, home copies included
  std::uint64_t sent_pages = 0;  ///< of those, that went from HBM to HBM: the rest stays at home
  Bytes bytes = 0;               ///< of the pages that went
  Seconds seconds = 0;           ///< predicted, added to the step
  Seconds slowest = 0;           ///< part of a step before, by the loads seen,
  Seconds expected = 0;          ///< and after it
  std::string refused;           ///< why nothing moved after all; empty: it did
};

/// A device's part.
struct DeviceOutcome {
  runtime::StepReport all, warm;
  std::vector<Seconds> step_seconds;
  std::uint32_t first_units = 0, units = 0;  ///< at the start, at the end
  std::vector<std::uint64_t> promoted;       ///< pages, by step
  std::vector<std::string> notes;
};

struct GroupOutcome {
  /// Counts are sums over the devices. A step takes what its slowest device takes, by layers the
  /// sum of all, and the merge; each migration is added to the step that follows it.
  runtime::ReplayResult whole;
  std::vector<DeviceOutcome> devices;
  std::vector<Migration> migrations;
  Seconds merging = 0;  ///< of all steps: results that devices send each other
  Seconds moving = 0;   ///< of all migrations
};

/// Replays a workload over several devices that all serve it: each has a contiguous part of the KV
/// heads, of the layers or of each sequence's tokens, and its own budget, policy and machine. Where
/// asked to, units change device by load and hit rate (placement::rebalanced()); pages at home stay
/// there, as the devices share the host's memory. Ranges of tokens change for sequences that come
/// later. Deterministic but for measured times.
Result<GroupOutcome> replay_group(const runtime::Workload& workload,
                                  const GroupReplayOptions& options,
                                  const runtime::Progress& progress = {});

}  // namespace lehr::serving
