// SPDX-License-Identifier: Apache-2.0
// Units that change device: what the devices showed, and how all K and V move.
#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/serving/serving_group.hpp"
#include "runtime/serving/tensors.hpp"

namespace lehr::serving {

using contents::Tensor;
using runtime::StepReport;

std::vector<placement::DeviceLoad> ServingGroup::take_loads() {
  std::vector<placement::DeviceLoad> loads;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const StepReport& seen = seen_[p];
    const runtime::Runtime& runtime = *parts_[p].runtime;
    const placement::Platform& platform = runtime.options().platform;
    const auto size = static_cast<double>(runtime.page_bytes());
    const double pages = runtime.table().live_pages();
    placement::DeviceLoad load;
    load.units = by(Split::kTokens) ? runtime.table().live_pages() : units_[p];
    if (steps_ > 0)
      load.step = (seen.measured > 0 ? seen.measured : seen.total) / static_cast<double>(steps_);
    if (seen.reads > 0)
      load.hit_rate = static_cast<double>(seen.hits) / static_cast<double>(seen.reads);
    if (pages > 0) load.share = runtime.table().slots(kHbm).capacity() / pages;
    load.hbm = platform.hbm.at(size, 1);
    const LinkId link = platform.link(platform.home, kHbm);
    load.link = link == placement::kNoLink ? load.hbm : platform.links[link].curve.at(size, 1);
    loads.push_back(load);
  }
  seen_.assign(parts_.size(), {});
  steps_ = 0;
  return loads;
}

/// Tokens at their start that two sequences share, as forks do: by their pages, which are the same.
std::uint64_t ServingGroup::shared_tokens(const Member& a, const Member& b) const {
  std::uint64_t shared = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const runtime::Runtime& runtime = *parts_[p].runtime;
    const auto one = runtime.blocks(a.ids[p]), other = runtime.blocks(b.ids[p]);
    const auto end = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    const auto common = static_cast<std::uint64_t>(end - one.begin());
    const std::uint64_t here = runtime.tokens(a.ids[p]).value_or(0);
    shared += std::min(here, common * options_.geometry.page_tokens);
    // The same range goes on, on the next device, only if all of it is shared.
    if (!by(Split::kTokens) || common < one.size() || common < other.size()) break;
  }
  return shared;
}

Status ServingGroup::truncate(const Member& member, std::uint64_t tokens) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    std::uint64_t here = tokens;
    if (by(Split::kTokens)) here -= std::min(here, range_first(member, p));
    here = std::min(here, parts_[p].runtime->tokens(member.ids[p]).value_or(0));
    LEHR_TRY(parts_[p].contents->truncate(member.ids[p], here));
  }
  return {};
}

/// What was enqueued on all devices has run.
Status ServingGroup::wait() {
  for (const Part& part : parts_) {
    auto stats = part.contents->stats();
    if (!stats) return std::move(stats).error();
  }
  return {};
}

/// K and V of a sequence from token `first` on, a layer at a time through host memory.
Status ServingGroup::copy_tokens(ServingGroup& to, SequenceId from_id, SequenceId to_id,
                                 std::uint64_t first) {
  const KvGeometry& g = options_.geometry;
  const std::uint64_t all = tokens(from_id);
  if (all == first) return {};
  const auto count = static_cast<std::uint32_t>(all - first);
  const auto rows = static_cast<std::int64_t>(all);
  const Bytes half = all * g.kv_heads * g.head_dim * contents::bytes_of(options_.element);
  LEHR_ASSIGN(const auto memory, parts_.front().contents->shared_memory(2 * half));
  const Tensor k = dense(memory.get(), options_.element, 1, g.kv_heads, rows, g.head_dim);
  const Tensor v = dense(memory.get() + half, options_.element, 1, g.kv_heads, rows, g.head_dim);
  LEHR_TRY(to.begin({&to_id, 1}, {&count, 1}));
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    LEHR_TRY(gather(layer, {&from_id, 1}, k, v));
    LEHR_TRY(wait());
    LEHR_TRY(to.append(layer, tokens_from(k, first), tokens_from(v, first)));
    LEHR_TRY(to.wait());
  }
  const auto ended = to.end();
  return ended ? Status{} : Status(ended.error());
}

/// Every sequence to a group that has none. A fork of one that was copied is a fork there, as far
/// as they share pages.
Status ServingGroup::copy_sequences(ServingGroup& to, Redealt& told) {
  const KvGeometry& g = options_.geometry;
  std::map<SequenceId, SequenceId> made;
  for (const auto& [id, member] : members_) {
    SequenceId like = 0;
    std::uint64_t shared = 0;
    for (const auto& [other, there] : made) {
      const std::uint64_t tokens = shared_tokens(member, members_.at(other));
      if (tokens <= shared) continue;
      shared = tokens;
      like = other;
    }
    SequenceId copy = 0;
    if (shared > 0) {
      LEHR_ASSIGN(copy, to.fork(made.at(like)));
      if (shared < to.tokens(copy)) LEHR_TRY(to.truncate(to.members_.at(copy), shared));
    } else {
      LEHR_ASSIGN(copy, to.create_sequence(std::max(member.expected, tokens(id))));
    }
    LEHR_TRY(copy_tokens(to, id, copy, shared));
    told.shared_tokens += shared;
    told.tokens += tokens(id) - shared;
    made.emplace(id, copy);
  }
  told.bytes = told.tokens * (g.page_bytes() / g.page_tokens) * g.groups();
  Members members;
  for (const auto& [id, copy] : made) members.emplace(id, to.members_.at(copy));
  to.members_ = std::move(members);
  return {};
}

Result<Redealt> ServingGroup::redeal(std::span<const std::uint32_t> units) {
  const auto sum = [](std::span<const std::uint32_t> of) {
    return std::accumulate(of.begin(), of.end(), std::uint64_t{0});
  };
  const bool some_none = std::find(units.begin(), units.end(), 0U) != units.end();
  const bool fits = by(Split::kTokens) ? sum(units) <= std::numeric_limits<std::uint32_t>::max()
                                       : sum(units) == sum(units_);
  if (units.size() != parts_.size() || some_none || !fits) {
    return invalid("dealing anew needs a number for each device, none 0, of the same sum",
                   Reason::kOutOfRange);
  }
  if (in_step()) return invalid("units change device between steps only");
  Redealt told;
  if (std::equal(units.begin(), units.end(), units_.begin())) return told;
  ServingGroup next(options_);
  next.units_.assign(units.begin(), units.end());
  next.seen_.resize(parts_.size());
  for (std::size_t d = 0; d < units.size(); ++d) {
    LEHR_ASSIGN(Part part, next.make_part(d, units[d]));
    next.parts_.push_back(std::move(part));
  }
  LEHR_TRY(copy_sequences(next, told));
  units_ = std::move(next.units_);
  parts_ = std::move(next.parts_);
  members_ = std::move(next.members_);
  seen_.assign(parts_.size(), {});
  steps_ = 0;
  return told;
}

}  // namespace lehr::serving
