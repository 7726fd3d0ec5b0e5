// SPDX-License-Identifier: Apache-2.0
#include "runtime/serving/group_replay.hpp"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "runtime/serving/group_target.hpp"

namespace lehr::serving {

using runtime::GroupSelection;
using runtime::SequenceInfo;
using runtime::StepReport;

Result<std::unique_ptr<GroupTarget>> GroupTarget::create(const KvGeometry& geometry,
                                                         const GroupReplayOptions& options) {
  const std::size_t count = options.devices.size();
  if (count == 0 || !options.make) return invalid("a group needs devices, and what makes them");
  if (!options.weights.empty() && options.weights.size() != count)
    return invalid(fmt::format("{} weights for {} devices", options.weights.size(), count));
  if (options.own_geometry && options.rebalance_every != 0)
    return unsupported(
        "machines that attend have a geometry of their own: units stay where they are");
  if (options.rebalance_every != 0 && options.devices.front().precision)
    return unsupported("units with pages of a lower precision stay where they are");
  if (options.own_geometry && options.split == Split::kTokens)
    return unsupported("machines that attend add a token in every step: no ranges of tokens there");
  std::unique_ptr<GroupTarget> made(new GroupTarget(geometry, options));
  made->weights_ = options.weights.empty() ? std::vector<double>(count, 1.0) : options.weights;
  const std::uint32_t units = options.split == Split::kLayers ? geometry.layers : geometry.kv_heads;
  if (options.split != Split::kTokens) {
    LEHR_ASSIGN(made->units_, divided(units, options.split, made->weights_));
  } else {
    for (const double weight : made->weights_) {
      if (!(weight > 0)) return invalid("the weight of a device must be positive");
    }
  }
  LEHR_TRY(made->make_devices());
  return made;
}

std::vector<std::uint32_t> GroupTarget::groups_of(Range units) const {
  std::vector<std::uint32_t> groups;
  for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    for (std::uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      const std::uint32_t unit = by(Split::kLayers) ? layer : head;
      if (unit >= units.first && unit < units.end())
        groups.push_back(layer * geometry_.kv_heads + head);
    }
  }
  return groups;
}

Status GroupTarget::make_devices() {
  const std::vector<Range> ranges = ranges_of(units_);
  for (std::size_t d = 0; d < options_.devices.size(); ++d) {
    runtime::RuntimeOptions o = options_.devices[d];
    o.geometry = geometry_;
    o.groups.clear();
    if (by(Split::kTokens)) {
      o.weights_bytes /= options_.devices.size();
    } else if (options_.own_geometry) {
      const std::uint32_t all = by(Split::kLayers) ? geometry_.layers : geometry_.kv_heads;
      o.weights_bytes = o.weights_bytes / all * ranges[d].count;
      if (by(Split::kLayers)) {
        o.geometry.layers = ranges[d].count;
      } else {
        o.geometry.q_heads = geometry_.q_heads / geometry_.kv_heads * ranges[d].count;
        o.geometry.kv_heads = ranges[d].count;
      }
    } else {
      o.groups = groups_of(ranges[d]);
    }
    Device device;
    device.outcome.first_units = by(Split::kTokens) ? 0 : units_[d];
    LEHR_ASSIGN(auto machine, options_.make(static_cast<std::uint32_t>(d), o));
    auto runtime = runtime::Runtime::create(std::move(o), std::move(machine));
    if (!runtime) {
      Error error = std::move(runtime).error();
      error.what = fmt::format("device {}: {}", d, error.what);
      return error;
    }
    device.runtime = *std::move(runtime);
    devices_.push_back(std::move(device));
  }
  return {};
}

// ---------------------------------------------------------------------- sequences

/// A device's part of a sequence: its range of tokens, or the whole length of its groups.
Result<SequenceId> GroupTarget::create_on(std::size_t d, const Member& member,
                                          const SequenceInfo& info) {
  const std::uint32_t page_tokens = geometry_.page_tokens;
  const std::uint64_t pages = info.prompt_tokens / page_tokens;
  SequenceInfo part = info;
  std::vector<Tick> first_use;
  Range range{0, static_cast<std::uint32_t>(pages)};
  if (by(Split::kTokens)) {
    range = member.tokens[d];
    part.prompt_tokens = std::uint64_t{range.count} * page_tokens;
    if (growing(d))
      part.prompt_tokens = info.prompt_tokens - std::uint64_t{range.first} * page_tokens;
    part.saliency = {};  // its pages have other numbers here
  }
  if (!info.first_use.empty()) {
    const std::uint64_t full = std::min<std::uint64_t>(pages, range.end()) - range.first;
    const std::vector<std::uint32_t> here =
        by(Split::kTokens) ? groups_of({0, geometry_.kv_heads}) : groups_of(ranges_of(units_)[d]);
    for (const std::uint32_t group : here) {
      const auto row = info.first_use.subspan(group * pages + range.first, full);
      first_use.insert(first_use.end(), row.begin(), row.end());
    }
    part.first_use = first_use;
  }
  LEHR_ASSIGN(const auto ids, devices_[d].runtime->create_sequences({&part, 1}));
  return ids.front();
}

Result<std::vector<SequenceId>> GroupTarget::create(std::span<const SequenceInfo> infos) {
  std::vector<SequenceId> made;
  for (const SequenceInfo& info : infos) {
    Member member;
    if (by(Split::kTokens))
      member.tokens = ranges_of(token_ranges(geometry_.pages_for(info.prompt_tokens), weights_));
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      member.ids.emplace_back();
      if (!growing(d) && member.tokens[d].count == 0) continue;
      LEHR_ASSIGN(member.ids.back(), create_on(d, member, info));
    }
    made.push_back(static_cast<SequenceId>(members_.size()));
    members_.emplace_back(std::move(member));
  }
  return made;
}

Status GroupTarget::release(SequenceId sequence) {
  const Member& member = *members_[sequence];
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    if (member.ids[d]) LEHR_TRY(devices_[d].runtime->release(*member.ids[d]));
  }
  members_[sequence].reset();
  return {};
}

// ---------------------------------------------------------------------- steps

Status GroupTarget::begin_step(std::span<const SequenceId> sequences) {
  if (options_.rebalance_every != 0 && steps_ != 0 && steps_ % options_.rebalance_every == 0)
    LEHR_TRY(rebalance());
  batch_ = sequences.size();
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    runtime::Runtime& runtime = *devices_[d].runtime;
    std::vector<SequenceId> here;
    for (const SequenceId id : sequences) {
      if (members_[id]->ids[d]) here.push_back(*members_[id]->ids[d]);
    }
    if (options_.take_turns) runtime.allow_background(steps_ % devices_.size() == d);
    LEHR_TRY(
        runtime.begin_step(here, growing(d) ? runtime::Growth::kOneToken : runtime::Growth::kNone));
  }
  return {};
}

/// A device's share of a group's pages, numbered from its range's first.
void GroupTarget::route_range(const GroupSelection& group, const Member& member, std::size_t d) {
  if (!member.ids[d]) return;
  Device& device = devices_[d];
  const Range range = member.tokens[d];
  const auto from = std::lower_bound(group.pages.begin(), group.pages.end(), range.first);
  const auto to =
      growing(d) ? group.pages.end() : std::lower_bound(from, group.pages.end(), range.end());
  GroupSelection part = group;
  part.sequence = *member.ids[d];
  if (group.mass != nullptr) part.mass = group.mass + range.first;
  if (group.peak != nullptr) part.peak = group.peak + range.first;
  if (!group.next_use.empty()) {
    part.next_use = group.next_use.subspan(static_cast<std::size_t>(from - group.pages.begin()),
                                           static_cast<std::size_t>(to - from));
  }
  for (auto page = from; page != to; ++page) device.pages.push_back(*page - range.first);
  device.pages_end.push_back(device.pages.size());
  device.groups.push_back(part);
}

void GroupTarget::route(const GroupSelection& group, std::uint32_t layer) {
  const Member& member = *members_[group.sequence];
  if (by(Split::kTokens)) {
    for (std::size_t d = 0; d < devices_.size(); ++d) route_range(group, member, d);
    return;
  }
  const std::vector<Range> ranges = ranges_of(units_);
  const std::size_t d = owner(layer * geometry_.kv_heads + group.kv_head, ranges);
  GroupSelection part = group;
  part.sequence = *member.ids[d];
  if (options_.own_geometry && by(Split::kHeads)) part.kv_head -= ranges[d].first;
  devices_[d].groups.push_back(part);
}

Status GroupTarget::run_layer(std::uint32_t layer, std::span<const GroupSelection> groups,
                              std::span<const std::uint32_t>) {
  for (Device& device : devices_) {
    device.groups.clear();
    device.pages.clear();
    device.pages_end.clear();
  }
  for (const GroupSelection& group : groups) route(group, layer);
  const std::vector<Range> ranges = ranges_of(units_);
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    Device& device = devices_[d];
    std::size_t from = 0;
    for (std::size_t i = 0; i < device.pages_end.size(); ++i) {
      device.groups[i].pages = std::span(device.pages).subspan(from, device.pages_end[i] - from);
      from = device.pages_end[i];
    }
    const bool elsewhere =
        by(Split::kLayers) && (layer < ranges[d].first || layer >= ranges[d].end());
    if (elsewhere) continue;
    const std::uint32_t own =
        options_.own_geometry && by(Split::kLayers) ? layer - ranges[d].first : layer;
    LEHR_TRY(device.runtime->run_layer(own, device.groups));
  }
  return {};
}

// ---------------------------------------------------------------------- time

Seconds GroupTarget::between(Bytes bytes, std::uint32_t transfers) const {
  Seconds sum = 0;
  for (const placement::Link& link : options_.between)
    sum += placement::link_time(link, {bytes, transfers});
  return sum;
}

/// What devices send each other in a step. By heads: each gets the outputs of the others' heads in
/// every layer. By tokens: the last gets the others' partial outputs and softmax pairs, in float32.
/// By layers: a device hands its outputs to the next.
Seconds GroupTarget::merge_time() const {
  const KvGeometry& g = options_.results.layers > 0 ? options_.results : geometry_;
  const std::uint64_t count = devices_.size();
  if (count == 1 || batch_ == 0) return 0;
  const Bytes rows = Bytes{batch_} * g.q_heads;
  if (by(Split::kLayers)) return static_cast<double>(count - 1) * between(rows * g.head_dim * 2, 1);
  const Bytes bytes = by(Split::kTokens) ? (count - 1) * rows * (g.head_dim * 4 + 8)
                                         : rows * g.head_dim * 2 * (count - 1) / count;
  return g.layers * between(bytes, static_cast<std::uint32_t>(count - 1));
}

StepReport GroupTarget::whole(std::span<const StepReport> parts) const {
  StepReport sum;
  StepReport slowest;
  for (const StepReport& part : parts) {
    sum.add(part);
    slowest.total = std::max(slowest.total, part.total);
    slowest.exposed = std::max(slowest.exposed, part.exposed);
    slowest.measured = std::max(slowest.measured, part.measured);
  }
  if (by(Split::kLayers)) return sum;
  sum.total = slowest.total;
  sum.exposed = slowest.exposed;
  sum.measured = slowest.measured;
  return sum;
}

Result<StepReport> GroupTarget::end_step() {
  std::vector<StepReport> parts;
  for (Device& device : devices_) {
    LEHR_ASSIGN(const StepReport report, device.runtime->end_step());
    parts.push_back(report);
    device.seen.add(report);
    device.outcome.all.add(report);
    if (steps_ >= options_.warmup_steps) device.outcome.warm.add(report);
    device.outcome.step_seconds.push_back(report.total);
    device.outcome.promoted.push_back(report.promoted);
  }
  const Seconds merge = merge_time();
  StepReport report = whole(parts);
  report.total += merge + moved_now_;
  report.exposed += merge + moved_now_;
  merging_ += merge;
  moved_now_ = 0;
  ++steps_;
  ++loaded_steps_;
  return report;
}

Status GroupTarget::finish() {
  for (Device& device : devices_) {
    LEHR_TRY(device.runtime->machine().drain());
    LEHR_TRY(device.runtime->machine().check());
    LEHR_TRY(device.runtime->validate());
  }
  return {};
}

void GroupTarget::tell(GroupOutcome& outcome) const {
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    DeviceOutcome device = devices_[d].outcome;
    device.units = by(Split::kTokens) ? 0 : units_[d];
    device.notes = devices_[d].runtime->machine().notes();
    outcome.devices.push_back(std::move(device));
  }
  outcome.migrations = migrations_;
  outcome.merging = merging_;
  outcome.moving = moving_;
}

Result<GroupOutcome> replay_group(const runtime::Workload& workload,
                                  const GroupReplayOptions& options,
                                  const runtime::Progress& progress) {
  LEHR_TRY(workload.validate());
  LEHR_ASSIGN(auto target, GroupTarget::create(
                               workload.sequences.front().selection->trace().geometry(), options));
  runtime::ReplayOptions replay;
  replay.runtime = options.devices.front();
  replay.warmup_steps = options.warmup_steps;
  replay.max_steps = options.max_steps;
  GroupOutcome outcome;
  LEHR_ASSIGN(outcome.whole, runtime::replay_on(*target, workload, replay, progress));
  outcome.whole.notes.clear();  // of one device's layers; a group's are several times as many
  target->tell(outcome);
  return outcome;
}

}  // namespace lehr::serving
