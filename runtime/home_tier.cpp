// SPDX-License-Identifier: Apache-2.0
#include "runtime/home_tier.hpp"

#include <fmt/core.h>

namespace lehr::runtime {

HomeTier::HomeTier(const placement::Platform& platform, PageTable& table)
    : table_(table), home_(platform.home) {
  for (const placement::Link& link : platform.links) {
    if (link.to != home_ || link.from == kHbm) continue;
    const LinkId down = platform.link(home_, link.from);
    if (down == placement::kNoLink || table.slots(link.from).capacity() == 0) continue;
    below_ = link.from;
    up_ = platform.link(link.from, home_);
    down_ = down;
  }
}

void HomeTier::opened(PageId block) {
  const std::size_t at = table_.block_index(block);
  if (at >= kept_.size()) {
    kept_.resize(2 * at + PageTable::kRun, 0);
    moved_down_.resize(kept_.size(), 0);
  }
  kept_[at] = keeping_;
}

void HomeTier::keep_none() { ++keeping_; }

void HomeTier::count(PageId page, bool before) {
  const bool now = is_down(page);
  if (now == before) return;
  std::uint32_t& down = moved_down_[table_.block_index(page)];
  down = now ? down + 1 : down - 1;
}

Status HomeTier::make_room(std::uint32_t places, placement::LayerLoad& load,
                           std::vector<PageOp>* ops) {
  while (table_.slots(home_).available() < places) LEHR_TRY(move_one_down(load, ops));
  return {};
}

Status HomeTier::move_one_down(placement::LayerLoad& load, std::vector<PageOp>* ops) {
  if (!has_below())
    return refused(Reason::kNoSpace, "the home tier is full and no tier is below it");
  // Two rounds: the first takes the second chance from pages read since the last pass.
  bool full = false;
  for (std::size_t tries = 0; tries < 2 * clock_.size(); ++tries) {
    const std::size_t at = hand_;
    hand_ = (hand_ + 1) % clock_.size();
    const PageId page = clock_[at];
    if (page == kNoPage || table_.guard[page] != 0 || is_kept(page) ||
        !resident(table_.residency[page], home_))
      continue;
    if (table_.last_tick[page] != seen_[at]) {
      seen_[at] = table_.last_tick[page];
      continue;
    }
    const bool before = is_down(page);
    if (!resident(table_.residency[page], below_)) {
      if (!table_.reserve(page, below_)) {
        full = true;  // one that has a copy there can still leave
        continue;
      }
      load.link[down_].add(table_.bytes(page));
      if (ops != nullptr) {
        ops->push_back({PageOp::Kind::kCopy, home_, below_, page, table_.version[page],
                        table_.slot[home_][page], table_.slot[below_][page]});
      }
      table_.mark_valid(page, below_);
    }
    table_.drop(page, home_);
    count(page, before);
    clock_[at] = kNoPage;
    return {};
  }
  if (full) return refused(Reason::kLowerTierBusy, "the tier below the home tier is full");
  return refused(Reason::kNoEvictable,
                 fmt::format("every page of the home tier is held: what one layer reads and writes "
                             "does not fit in its {} pages",
                             table_.slots(home_).capacity()));
}

Status HomeTier::reserve(PageId page, placement::LayerLoad& load, std::vector<PageOp>* ops) {
  LEHR_TRY(make_room(1, load, ops));
  if (!table_.reserve(page, home_))
    return internal_error("home tier: room was made but none is there");
  const SlotId slot = table_.slot[home_][page];
  if (slot >= clock_.size()) {
    clock_.resize(slot + 1, kNoPage);
    seen_.resize(slot + 1, kNever);
  }
  clock_[slot] = page;
  seen_[slot] = table_.last_tick[page];
  return {};
}

Status HomeTier::place(PageId page, std::vector<PageOp>* ops) {
  TierId tier = home_;
  const bool before = is_down(page);
  if (table_.slots(home_).available() > 0) {
    placement::LayerLoad none;
    LEHR_TRY(reserve(page, none, nullptr));
  } else {
    tier = below_;
    if (!has_below() || !table_.reserve(page, below_)) {
      return refused(Reason::kNoSpace, "home tier and the tier below it are full");
    }
  }
  table_.mark_valid(page, tier);
  count(page, before);
  if (ops != nullptr) {
    ops->push_back({PageOp::Kind::kFill, tier, tier, page, table_.version[page],
                    table_.slot[tier][page], table_.slot[tier][page]});
  }
  return {};
}

Status HomeTier::stage(PageId page, bool ahead, placement::LayerLoad& load,
                       std::vector<PageOp>* ops) {
  LEHR_TRY(reserve(page, load, ops));
  const bool before = is_down(page);
  (ahead ? load.link : load.stall)[up_].add(table_.bytes(page));
  if (ops != nullptr) {
    ops->push_back({PageOp::Kind::kCopy, below_, home_, page, table_.version[page],
                    table_.slot[below_][page], table_.slot[home_][page]});
  }
  table_.mark_valid(page, home_);
  count(page, before);
  return {};
}

void HomeTier::rewritten(PageId page) {
  if (!has_below() || table_.slot[below_][page] == kNoSlot) return;
  const bool before = is_down(page);
  table_.drop(page, below_);
  count(page, before);
}

void HomeTier::release(PageId page) {
  if (table_.slot[home_][page] != kNoSlot) {
    const bool before = is_down(page);
    clock_[table_.slot[home_][page]] = kNoPage;
    table_.drop(page, home_);
    count(page, before);
  }
  rewritten(page);
}

}  // namespace lehr::runtime
