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

Status HomeTier::make_room(placement::LayerLoad& load, std::vector<PageOp>* ops) {
  if (table_.slots(home_).available() > 0) return {};
  if (!has_below())
    return refused(Reason::kNoSpace, "the home tier is full and no tier is below it");
  // Two rounds: the first takes the second chance from pages read since the last pass.
  for (std::size_t tries = 0; tries < 2 * clock_.size(); ++tries) {
    const std::size_t at = hand_;
    hand_ = (hand_ + 1) % clock_.size();
    const PageId page = clock_[at];
    if (page == kNoPage || table_.guard[page] != 0 || !resident(table_.residency[page], home_))
      continue;
    if (table_.last_tick[page] != seen_[at]) {
      seen_[at] = table_.last_tick[page];
      continue;
    }
    if (!resident(table_.residency[page], below_)) {
      if (!table_.reserve(page, below_)) {
        return refused(Reason::kLowerTierBusy, "the tier below the home tier is full");
      }
      load.link[down_].add(table_.bytes(page));
      if (ops != nullptr) {
        ops->push_back({PageOp::Kind::kCopy, home_, below_, page, table_.version[page],
                        table_.slot[home_][page], table_.slot[below_][page]});
      }
      table_.mark_valid(page, below_);
    }
    table_.drop(page, home_);
    clock_[at] = kNoPage;
    return {};
  }
  return refused(Reason::kNoEvictable,
                 fmt::format("every page of the home tier is held: what one layer reads and writes "
                             "does not fit in its {} pages",
                             table_.slots(home_).capacity()));
}

Status HomeTier::reserve(PageId page, placement::LayerLoad& load, std::vector<PageOp>* ops) {
  LEHR_TRY(make_room(load, ops));
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
  if (ops != nullptr) {
    ops->push_back({PageOp::Kind::kFill, tier, tier, page, table_.version[page],
                    table_.slot[tier][page], table_.slot[tier][page]});
  }
  return {};
}

Status HomeTier::stage(PageId page, bool ahead, placement::LayerLoad& load,
                       std::vector<PageOp>* ops) {
  LEHR_TRY(reserve(page, load, ops));
  (ahead ? load.link : load.stall)[up_].add(table_.bytes(page));
  if (ops != nullptr) {
    ops->push_back({PageOp::Kind::kCopy, below_, home_, page, table_.version[page],
                    table_.slot[below_][page], table_.slot[home_][page]});
  }
  table_.mark_valid(page, home_);
  return {};
}

void HomeTier::release(PageId page) {
  if (table_.slot[home_][page] != kNoSlot) {
    clock_[table_.slot[home_][page]] = kNoPage;
    table_.drop(page, home_);
  }
  rewritten(page);
}

}  // namespace lehr::runtime
