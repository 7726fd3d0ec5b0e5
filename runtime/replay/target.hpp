// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/replay/replay.hpp"

namespace lehr::runtime {

/// What a replay feeds: a runtime called directly, or one behind the C interface.
class ReplayTarget {
 public:
  virtual ~ReplayTarget() = default;
  virtual Result<std::vector<SequenceId>> create(std::span<const SequenceInfo> infos) = 0;
  virtual Status begin_step(std::span<const SequenceId> sequences) = 0;
  /// `contexts`: pages of each group's sequence, aligned with `groups`.
  virtual Status run_layer(std::uint32_t layer, std::span<const GroupSelection> groups,
                           std::span<const std::uint32_t> contexts) = 0;
  virtual Result<StepReport> end_step() = 0;
  virtual Status release(SequenceId sequence) = 0;
  virtual std::vector<std::string> notes() = 0;
  /// After the last step: what runs beside the host has ended, contents are as they should be.
  virtual Status finish() { return {}; }
};

/// Lines for people, of what the policy did in a replay's steps: where it held promotions back and
/// why, and what was asked for that does not touch it.
void note_policy(const RuntimeOptions& options, std::uint32_t layers,
                 const placement::PolicyDescriptor& policy, ReplayResult& result);

Result<ReplayResult> replay_on(ReplayTarget& target, const Workload& workload,
                               const ReplayOptions& options, const Progress& progress);

}  // namespace lehr::runtime
