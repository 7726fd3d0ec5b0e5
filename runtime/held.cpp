// SPDX-License-Identifier: Apache-2.0
// A runtime that holds some of a model's KV groups, as one device of several does, and what happens
// when they change.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

#include "kernels/base/check.hpp"
#include "runtime/runtime.hpp"

namespace lehr::runtime {

namespace {

/// Whether a sequence still writes into its block.
bool is_tail(const Sequence& s, PageId block, std::uint32_t page_tokens) {
  return s.tokens % page_tokens != 0 && block == s.blocks.back();
}

}  // namespace

Status Runtime::set_held(std::vector<std::uint32_t> groups) {
  const KvGeometry& g = options_.geometry;
  const bool some = !groups.empty();
  for (std::uint32_t group = 0; !some && group < g.groups(); ++group) groups.push_back(group);
  if (some) LEHR_TRY(check_hold(groups));
  held_ = std::move(groups);
  is_held_.assign(g.groups(), 0);
  heads_held_.assign(g.layers, 0);
  for (const std::uint32_t group : held_) {
    is_held_[group] = 1;
    ++heads_held_[group / g.kv_heads];
  }
  return {};
}

Status Runtime::check_hold(std::span<const std::uint32_t> groups) const {
  const std::uint32_t all = options_.geometry.groups();
  std::uint64_t from = 0;
  for (const std::uint32_t group : groups) {
    if (group < from || group >= all) {
      return invalid(fmt::format("KV groups to hold: {} is out of order, named twice or past the "
                                 "{} there are",
                                 group, all),
                     Reason::kOutOfRange);
    }
    from = std::uint64_t{group} + 1;
  }
  if (groups.empty()) return invalid("KV groups to hold: none", Reason::kOutOfRange);
  if (groups.size() != all && machine_->traits().attends)
    return unsupported("this machine attends to all KV groups of its geometry");
  for (const auto& s : sequences_) {
    if (s && s->suspended)
      return invalid(fmt::format("sequence {} is suspended: its groups stay", s->number));
  }
  return {};
}

/// The first layer from `from` on with groups that are here; all layers there are if none is left.
std::uint32_t Runtime::first_held_layer(std::uint32_t from) const {
  while (from < options_.geometry.layers && heads_held_[from] == 0) ++from;
  return from;
}

/// Every token block once, however many sequences share it, with one of them.
std::vector<std::pair<PageId, const Sequence*>> Runtime::live_blocks() const {
  std::vector<std::pair<PageId, const Sequence*>> blocks;
  std::unordered_set<PageId> seen;
  for (const auto& s : sequences_) {
    if (!s) continue;
    for (const PageId base : s->blocks) {
      if (seen.insert(base).second) blocks.emplace_back(base, &*s);
    }
  }
  return blocks;
}

/// The pages of groups that are here no longer; how many they were.
std::uint64_t Runtime::let_go(std::span<const std::uint32_t> leaving) {
  std::vector<PageId> gone, known;
  for (const auto& [base, s] : live_blocks()) {
    const bool tail = is_tail(*s, base, options_.geometry.page_tokens);
    for (const std::uint32_t group : leaving) {
      gone.push_back(base + group * PageTable::kRun);
      if (!tail) known.push_back(gone.back());
    }
  }
  if (predictor_) predictor_->remove_pages(known);
  policy_->remove_pages(known);
  for (const PageId page : gone) free_page(page);
  return gone.size();
}

Result<HeldChange> Runtime::hold(std::vector<std::uint32_t> groups, const WantedInHbm& wanted) {
  if (in_step_) return invalid("KV groups cannot change inside a step");
  LEHR_TRY(check_hold(groups));
  if (options_.precision)
    return unsupported("KV groups with pages of a lower precision stay where they are");
  std::vector<std::uint32_t> leaving, coming;
  std::set_difference(held_.begin(), held_.end(), groups.begin(), groups.end(),
                      std::back_inserter(leaving));
  std::set_difference(groups.begin(), groups.end(), held_.begin(), held_.end(),
                      std::back_inserter(coming));
  const std::uint32_t page_tokens = options_.geometry.page_tokens;
  const auto blocks = live_blocks();
  // What comes must find room without what leaves: then nothing was changed.
  const std::uint64_t full =
      coming.size() * static_cast<std::uint64_t>(
                          std::count_if(blocks.begin(), blocks.end(), [&](const auto& block) {
                            return !is_tail(*block.second, block.first, page_tokens);
                          }));
  if (full > room_below_hbm()) {
    return refused(Reason::kNoSpace, fmt::format("{} pages that come for {} free pages below HBM",
                                                 full, room_below_hbm()));
  }
  if (live_sequences() * groups.size() > options_.tier_pages[kHbm])
    return refused(Reason::kOverBudget, "HBM cannot hold the tail pages of these KV groups");
  HeldChange change;
  change.left = let_go(leaving);
  LEHR_TRY(set_held(std::move(groups)));

  std::vector<PageOp> ops;
  std::vector<PageId> told;
  for (auto at = blocks.rbegin(); at != blocks.rend(); ++at) {  // the latest find room first
    const auto& [base, s] = *at;
    const std::size_t index = table_.position[base];
    const bool tail = is_tail(*s, base, page_tokens);
    for (const std::uint32_t group : coming) {
      const PageId page = base + group * PageTable::kRun;
      ++change.came;
      place_page(page, tail ? tail_tokens(*s) : 0,
                 tail || (wanted && wanted(s->number, group, index)), ops);
      if (tail) {
        ++change.came_tails;
        continue;
      }
      if (resident(table_.residency[page], kHbm)) ++change.came_full;
      told.push_back(page);
    }
  }
  std::sort(told.begin(), told.end());
  tell_new(told, {});
  if (moves_bytes_) LEHR_TRY(machine_->set_up(ops));
  return change;
}

}  // namespace lehr::runtime
