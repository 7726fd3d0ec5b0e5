// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/instance.hpp"
#include "runtime/replay/workload.hpp"
#include "runtime/runtime.hpp"

namespace lehr::runtime {

struct ReplayOptions {
  RuntimeOptions runtime;  ///< platform, capacities, policy; the geometry comes from the workload
  std::uint32_t warmup_steps = 16;  ///< left out of the second set of totals
  std::uint32_t max_steps = 0;      ///< stop after so many; 0: all
};

/// What pages at the lower precision did in a replay.
struct LoweringResult {
  Bytes saved_a_page = 0;
  Bytes saved_to_hbm = 0;  ///< that did not have to cross
  Bytes saved_in_hbm = 0;  ///< that reads of HBM did not take
  Bytes written_home = 0;  ///< of the new forms
  double mean_mass = 0;    ///< share of the steps' softmax mass on such pages
  double most_mass = 0;    ///< the largest of a step
  /// The largest, as placement sees it: of the steps so far, those before decayed as heat is.
  double most_decayed_mass = 0;
};

struct ReplayResult {
  std::string policy;
  StepReport all;
  StepReport warm;  ///< without the first warmup_steps
  std::uint32_t steps = 0;
  std::uint32_t warm_steps = 0;
  std::uint64_t tokens = 0;  ///< decoded: one a sequence and step
  std::uint64_t warm_tokens = 0;
  std::vector<Seconds> step_seconds;       ///< predicted, by step
  std::vector<Seconds> measured_seconds;   ///< where the machine measures
  Seconds wall = 0;                        ///< of the replay itself
  std::optional<LoweringResult> lowering;  ///< where pages may be lowered
  std::vector<std::string> notes;
};

/// Runs the workload through a runtime's step loop on `machine`. Deterministic but for wall times.
Result<ReplayResult> replay(const Workload& workload, const ReplayOptions& options,
                            std::unique_ptr<Machine> machine, const Progress& progress = {});

/// How a replay opens its runtime through the C interface.
struct ApiOptions {
  std::string machine = "sim";  ///< sim or host
  std::string
      profile;  ///< a shipped name or a file: the one that options.runtime.platform came from
  std::string nvme_directory;
  bool contents = false;  ///< pages hold K and V that the caller brings (host)
};

/// The same through lehr.h, as an engine embeds Lehr. `options.runtime` is written as a
/// configuration. A policy that needs the whole replay in advance is none for an engine: on `sim`
/// it is replayed without the interface, elsewhere refused.
Result<ReplayResult> replay_through_api(const Workload& workload, const ReplayOptions& options,
                                        const ApiOptions& api, const Progress& progress = {});

/// The same replay as a problem of placement, for bounds and the offline oracle. It holds for
/// machines whose home tier takes everything (no tier below in use). `options.platform` must
/// outlive it.
Result<placement::Instance> replay_instance(const Workload& workload, const ReplayOptions& options);

}  // namespace lehr::runtime
