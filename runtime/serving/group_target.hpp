// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "runtime/replay/target.hpp"
#include "runtime/serving/group_replay.hpp"

namespace lehr::serving {

using runtime::SequenceId;

/// Several runtimes fed as if they were one: what replay_group() runs.
class GroupTarget final : public runtime::ReplayTarget {
 public:
  static Result<std::unique_ptr<GroupTarget>> create(const KvGeometry& geometry,
                                                     const GroupReplayOptions& options);

  Result<std::vector<SequenceId>> create(std::span<const runtime::SequenceInfo> infos) override;
  Status begin_step(std::span<const SequenceId> sequences) override;
  Status run_layer(std::uint32_t layer, std::span<const runtime::GroupSelection> groups,
                   std::span<const std::uint32_t> contexts) override;
  Result<runtime::StepReport> end_step() override;
  Status release(SequenceId sequence) override;
  std::vector<std::string> notes() override { return {}; }
  Status finish() override;

  /// What `outcome.whole` does not have yet.
  void tell(GroupOutcome& outcome) const;

 private:
  struct Device {
    std::unique_ptr<runtime::Runtime> runtime;
    DeviceOutcome outcome;
    runtime::StepReport seen;  ///< since the last look at the loads
    // Of the layer that is fed.
    std::vector<runtime::GroupSelection> groups;
    std::vector<std::uint32_t> pages;    ///< of the groups, as positions in the device's range
    std::vector<std::size_t> pages_end;  ///< by group
  };
  struct Member {
    std::vector<std::optional<SequenceId>> ids;  ///< by device
    std::vector<Range> tokens;                   ///< pages of each device's range
  };

  GroupTarget(const KvGeometry& geometry, const GroupReplayOptions& options)
      : geometry_(geometry), options_(options) {}
  bool by(Split split) const { return options_.split == split; }
  bool growing(std::size_t device) const {
    return !by(Split::kTokens) || device + 1 == devices_.size();
  }
  Status make_devices();
  std::vector<std::uint32_t> groups_of(Range units) const;
  Result<SequenceId> create_on(std::size_t device, const Member& member,
                               const runtime::SequenceInfo& info);
  void route(const runtime::GroupSelection& group, std::uint32_t layer);
  void route_range(const runtime::GroupSelection& group, const Member& member, std::size_t device);
  runtime::StepReport whole(std::span<const runtime::StepReport> parts) const;
  Seconds merge_time() const;
  Seconds between(Bytes bytes, std::uint32_t transfers) const;

  // Rebalancing (group_rebalance.cpp).
  std::vector<placement::DeviceLoad> take_loads();
  std::vector<std::uint32_t> wanted_units(std::span<const placement::DeviceLoad> loads) const;
  Status rebalance();
  /// By KV group and sequence in the device that it goes to: of its token blocks.
  using InHbm = std::map<std::pair<std::uint32_t, SequenceId>, std::vector<bool>>;
  std::size_t owner(std::uint32_t group, std::span<const Range> ranges) const;
  InHbm in_hbm(std::span<const Range> before, std::span<const Range> after) const;
  Status move_units(const std::vector<std::uint32_t>& units, Migration migration);

  KvGeometry geometry_;
  GroupReplayOptions options_;
  std::vector<Device> devices_;
  std::vector<double> weights_;       ///< of ranges of tokens that are dealt from now on
  std::vector<std::uint32_t> units_;  ///< heads or layers
  std::vector<std::optional<Member>> members_;
  std::size_t batch_ = 0;
  std::uint32_t steps_ = 0, loaded_steps_ = 0;
  Seconds moved_now_ = 0;  ///< by a migration before the open step
  std::vector<Migration> migrations_;
  Seconds merging_ = 0, moving_ = 0;
};

}  // namespace lehr::serving
