// SPDX-License-Identifier: Apache-2.0
// Units that change device between steps of a replayed group.
#include <algorithm>

#include "runtime/serving/group_target.hpp"

namespace lehr::serving {

namespace {

Seconds slowest(std::span<const placement::DeviceLoad> loads,
                std::span<const std::uint32_t> units) {
  Seconds most = 0;
  for (std::size_t d = 0; d < loads.size(); ++d)
    most = std::max(most, placement::predicted_step(loads[d], units[d]));
  return most;
}

Seconds sum_of(std::span<const placement::DeviceLoad> loads, std::span<const std::uint32_t> units) {
  Seconds sum = 0;
  for (std::size_t d = 0; d < loads.size(); ++d)
    sum += placement::predicted_step(loads[d], units[d]);
  return sum;
}

}  // namespace

std::vector<placement::DeviceLoad> GroupTarget::take_loads() {
  std::vector<placement::DeviceLoad> loads;
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    Device& device = devices_[d];
    const placement::Platform& platform = device.runtime->options().platform;
    const auto size = static_cast<double>(device.runtime->page_bytes());
    placement::DeviceLoad load;
    load.units = units_[d];
    load.step = device.seen.total / std::max(1U, loaded_steps_);
    if (device.seen.reads > 0) {
      load.hit_rate =
          static_cast<double>(device.seen.hits) / static_cast<double>(device.seen.reads);
    }
    const runtime::PageTable& table = device.runtime->table();
    const double pages = static_cast<double>(table.live_pages()) *
                         static_cast<double>(device.runtime->groups().size()) / geometry_.groups();
    if (pages > 0) load.share = table.slots(kHbm).capacity() / pages;
    load.hbm = platform.hbm.at(size, 1);
    // Pages cross in numbers, a layer's misses together; few or none now says nothing of more.
    const double layers = static_cast<double>(std::max(1U, loaded_steps_)) *
                          (by(Split::kLayers) ? units_[d] : geometry_.layers);
    const double misses = static_cast<double>(std::max(device.seen.misses, device.seen.reads / 10));
    const LinkId link = platform.link(platform.home, kHbm);
    load.link = platform.links[link].curve.at(size, std::max(1.0, misses / layers));
    loads.push_back(load);
    device.seen = {};
  }
  loaded_steps_ = 0;
  return loads;
}

/// A step by layers is the sum of its devices: of the changes that shorten the slowest, the one
/// that shortens the sum most.
std::vector<std::uint32_t> GroupTarget::wanted_units(
    std::span<const placement::DeviceLoad> loads) const {
  if (!by(Split::kLayers)) return placement::rebalanced(loads, options_.rule);
  std::vector<std::uint32_t> best = units_;
  placement::RebalanceRule rule = options_.rule;
  for (rule.most_units = 1; rule.most_units <= options_.rule.most_units; ++rule.most_units) {
    std::vector<std::uint32_t> units = placement::rebalanced(loads, rule);
    if (sum_of(loads, units) < sum_of(loads, best)) best = std::move(units);
  }
  return best;
}

Status GroupTarget::rebalance() {
  if (by(Split::kTokens)) {
    // Pages stay on their device; those of later sequences go where steps are short.
    std::vector<double> next;
    for (const Device& device : devices_) {
      if (device.seen.total <= 0 || device.seen.reads == 0) return {};
      next.push_back(static_cast<double>(device.seen.reads) / device.seen.total);
    }
    for (Device& device : devices_) device.seen = {};
    weights_ = std::move(next);
    return {};
  }
  const std::vector<placement::DeviceLoad> loads = take_loads();
  const std::vector<std::uint32_t> units = wanted_units(loads);
  if (units == units_) return {};
  Migration migration;
  migration.step = steps_;
  migration.before = units_;
  migration.after = units;
  migration.slowest = slowest(loads, units_);
  migration.expected = slowest(loads, units);
  return move_units(units, std::move(migration));
}

/// Which device's range has a KV group.
std::size_t GroupTarget::owner(std::uint32_t group, std::span<const Range> ranges) const {
  const std::uint32_t unit =
      by(Split::kLayers) ? group / geometry_.kv_heads : group % geometry_.kv_heads;
  return static_cast<std::size_t>(
      std::find_if(ranges.begin(), ranges.end(), [&](Range r) { return unit < r.end(); }) -
      ranges.begin());
}

/// Which pages of the groups that change device are in HBM where they are.
GroupTarget::InHbm GroupTarget::in_hbm(std::span<const Range> before,
                                       std::span<const Range> after) const {
  InHbm found;
  for (std::uint32_t group = 0; group < geometry_.groups(); ++group) {
    const std::size_t from = owner(group, before), to = owner(group, after);
    if (from == to) continue;
    const runtime::PageTable& table = devices_[from].runtime->table();
    for (const auto& member : members_) {
      if (!member) continue;
      std::vector<bool>& here = found[{group, *member->ids[to]}];
      for (const PageId base : devices_[from].runtime->blocks(*member->ids[from]))
        here.push_back(resident(table.residency[base + group * runtime::PageTable::kRun], kHbm));
    }
  }
  return found;
}

/// Every device lets go and takes what is its own now; pages that were in HBM go to HBM as far as
/// there is room. On a refusal those that have changed go back.
Status GroupTarget::move_units(const std::vector<std::uint32_t>& units, Migration migration) {
  const Migration unmoved = migration;
  const std::vector<Range> ranges = ranges_of(units), before = ranges_of(units_);
  const InHbm hot = in_hbm(before, ranges);  // looked up before anybody lets go
  const runtime::WantedInHbm wanted = [&](SequenceId id, std::uint32_t group, std::size_t block) {
    const auto known = hot.find({group, id});
    return known != hot.end() && block < known->second.size() && known->second[block];
  };
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    if (ranges[d] == before[d]) continue;
    auto change = devices_[d].runtime->hold(groups_of(ranges[d]), wanted);
    if (!change) {
      for (std::size_t back = 0; back < d; ++back)
        LEHR_TRY(devices_[back].runtime->hold(groups_of(before[back]), wanted));
      if (change.error().code != Code::kRefused) return change.error();
      migration = unmoved;
      migration.refused = change.error().what;
      migrations_.push_back(std::move(migration));
      return {};
    }
    if (change->came == 0) continue;
    migration.to = static_cast<std::uint32_t>(d);
    migration.pages += change->came;
    const std::uint64_t sent = change->came_full + change->came_tails;
    migration.sent_pages += sent;
    const Bytes bytes = sent * devices_[d].runtime->page_bytes();
    migration.bytes += bytes;
    // One device after the other: no two migrations share a link.
    migration.seconds += between(bytes, static_cast<std::uint32_t>(sent));
  }
  units_ = units;
  moved_now_ += migration.seconds;
  moving_ += migration.seconds;
  migrations_.push_back(std::move(migration));
  return {};
}

}  // namespace lehr::serving
