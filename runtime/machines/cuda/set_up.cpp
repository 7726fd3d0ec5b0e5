// SPDX-License-Identifier: Apache-2.0
// What happens between steps: prompts, suspended tails, sequences that enter the tables.
#include <algorithm>

#include <fmt/core.h>

#include "runtime/machines/cuda/decode_machine.hpp"
#include "runtime/page_table.hpp"

namespace lehr::runtime::cuda {

using kernels::PageEntry;

/// What the device makes, then what it copies: carried out together, before pages go down.
struct DecodeMachine::SetUp {
  std::vector<kernels::PageContents> made;
  std::vector<kernels::PageCopy> copies;
};

Status DecodeMachine::set_up(std::span<const PageOp> ops) {
  LEHR_TRY(give_up());
  if (below_ != 0) LEHR_TRY(wait_for_all());
  SetUp now;
  for (const PageOp& op : ops) LEHR_TRY(set_up_op(op, now));
  LEHR_TRY(carry_out(now));
  return below_ != 0 ? wait_for_all() : Status{};
}

/// Pages that moved between home and the tier below before a layer was refused.
Status DecodeMachine::run_layer(Step, std::uint32_t, std::span<const PageOp> ops) {
  if (failed_) return *failed_;
  LEHR_TRY(launch_listed());
  LEHR_TRY(wait_for_all());
  SetUp now;
  for (const PageOp& op : ops) LEHR_TRY(set_up_op(op, now));
  return carry_out(now);
}

Status DecodeMachine::set_up_op(const PageOp& op, SetUp& now) {
  const bool below = below_ != 0 && op.to == below_;
  if (!ledger_.has(op.to, op.to_slot) || !(op.to == kHbm || op.to == home_ || below)) {
    return unsupported(
        "cuda machine: pages live in HBM, on the home tier and on one tier below it");
  }
  if (below_ != 0 && home_slots_->free() == 0) {
    LEHR_TRY(carry_out(now));
    LEHR_TRY(wait_for_all());
  }
  return op.kind == PageOp::Kind::kFill ? set_up_fill(op, now) : set_up_copy(op, now);
}

Status DecodeMachine::set_up_fill(const PageOp& op, SetUp& now) {
  if (!now.copies.empty()) LEHR_TRY(carry_out(now));  // they may read what is about to be made anew
  const std::uint32_t tokens = op.tokens != 0 ? op.tokens : shape_.page_tokens;
  std::uint64_t to = 0;
  if (below_ != 0 && op.to == below_) {
    const auto free = home_slots_->take();
    if (!free) return refused(Reason::kOverBudget, "cuda machine: no spare place for a set-up");
    to = memory_[home_].address(*free);
    home_slots_->fill(*free, launched_);
    LEHR_TRY(below_tier_->sink(op.page, op.version, *free, op.to_slot));
    home_slots_->retire(*free);
  } else {
    if (below_ != 0 && op.to == home_) LEHR_TRY(below_tier_->into(op.to_slot, launched_));
    to = address(op.to, op.to_slot);
  }
  now.made.push_back({to, contents_name(op.page), tokens});
  put(op.to, op.to_slot, {op.page, op.version, tokens});
  return {};
}

Status DecodeMachine::set_up_copy(const PageOp& op, SetUp& now) {
  LEHR_TRY(expect(op.from, op.from_slot, op.page, op.version));
  if (below_ != 0 && op.to == below_) {
    LEHR_TRY(below_tier_->sink(op.page, op.version, home_slots_->place(op.from_slot), op.to_slot));
  } else if (below_ != 0 && op.from == below_) {
    LEHR_ASSIGN(const auto still,
                below_tier_->stage(op.page, op.version, op.from_slot, op.to_slot, launched_));
    if (still) {
      LEHR_ASSIGN(const std::uint32_t to, below_tier_->into(op.to_slot, launched_));
      now.copies.push_back({memory_[home_].address(*still), memory_[home_].address(to)});
    } else {
      below_tier_->need(home_slots_->place(op.to_slot));
    }
  } else {
    const std::uint64_t from = source(op.from, op.from_slot);
    if (below_ != 0 && op.to == home_) LEHR_TRY(below_tier_->into(op.to_slot, launched_));
    now.copies.push_back({from, address(op.to, op.to_slot)});
  }
  put(op.to, op.to_slot, ledger_.tier(op.from)[op.from_slot]);
  return {};
}

Status DecodeMachine::carry_out(SetUp& now) {
  if (below_ != 0) {
    Status there = below_tier_->submit();
    if (there) there = below_tier_->wait_for_needed();
    if (!there) return fail(std::move(there).error());
  }
  LEHR_TRY(device_->set_up(now.made, now.copies));
  now = {};
  if (below_ == 0) return {};
  // It has ended: a launch like others.
  collect_times();
  ++launched_;
  ++ended_;
  note_launched();
  return below_tier_->pump(ended_);
}

PageEntry DecodeMachine::known_entry(PageId page) const {
  // The home copy first: HBM copies are dropped without a word.
  for (const TierId t : {home_, kHbm}) {
    if (page >= last_slot_[t].size()) continue;
    const SlotId slot = last_slot_[t][page];
    if (slot != kNoSlot && ledger_.tier(t)[slot].page == page) return entry(t, slot);
  }
  return kernels::kAbsentPage;
}

/// Of a page that has a copy there; kNoSlot.
SlotId DecodeMachine::slot_below(PageId page) const {
  if (page >= last_slot_[below_].size()) return kNoSlot;
  const SlotId slot = last_slot_[below_][page];
  return slot != kNoSlot && ledger_.tier(below_)[slot].page == page ? slot : kNoSlot;
}

Status DecodeMachine::start_fresh_rows(const LayerWork& work) {
  if (fresh_.empty()) return {};
  if (below_ != 0) LEHR_TRY(wait_for_all());
  for (const std::uint32_t row : fresh_) {
    const auto g = std::find_if(work.groups.begin(), work.groups.end(), [&](const GroupWork& w) {
      return w.sequence == rows_[row]->sequence;
    });
    LEHR_TRY(start_row(row, *g));
  }
  return {};
}

Status DecodeMachine::start_row(std::uint32_t row, const GroupWork& first) {
  const std::uint32_t heads = shape_.kv_heads;
  const std::size_t row_entries = std::size_t{heads} * shape_.max_pages;
  std::vector<PageEntry> entries(options_.geometry.layers * row_entries, kernels::kAbsentPage);
  if (below_ != 0) LEHR_TRY(box_pages_below(row, first, entries));
  for (std::uint32_t group = 0; group < options_.geometry.layers * heads; ++group) {
    for (std::size_t b = 0; b < first.blocks.size(); ++b) {
      entries[group * std::size_t{shape_.max_pages} + b] =
          known_entry(first.blocks[b] + group * PageTable::kRun);
    }
  }
  for (std::uint32_t l = 0; l < options_.geometry.layers; ++l) {
    std::copy_n(entries.begin() + static_cast<std::ptrdiff_t>(l * row_entries), row_entries,
                mirror_[l].begin() + static_cast<std::ptrdiff_t>(row * row_entries));
  }
  return device_->start_row(row, static_cast<std::uint32_t>(first.tokens - 1), entries);
}

/// Boxes of pages that lie in the file alone: they come up into spare places for as long as that
/// takes. `entries` is all absent, and is so afterwards.
Status DecodeMachine::box_pages_below(std::uint32_t row, const GroupWork& first,
                                      std::vector<PageEntry>& entries) {
  std::vector<BelowTier::Wanted> wanted;
  std::vector<std::size_t> at;
  const auto carry = [&]() -> Status {
    if (wanted.empty()) return {};
    LEHR_ASSIGN(const auto good, below_tier_->fetch(wanted));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (good[i] == 0) {
        return corrupt(fmt::format("page {} cannot be read from the tier below", wanted[i].page),
                       Reason::kChecksum);
      }
      entries[at[i]] = kernels::make_entry(memory_[home_].address(wanted[i].place),
                                           memory_[home_].over_link, DType::kF16);
    }
    LEHR_TRY(device_->start_row(row, static_cast<std::uint32_t>(first.tokens - 1), entries));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      entries[at[i]] = kernels::kAbsentPage;
      home_slots_->retire(wanted[i].place);
    }
    home_slots_->reclaim(ended_);
    wanted.clear();
    at.clear();
    return {};
  };
  for (std::uint32_t group = 0; group < options_.geometry.groups(); ++group) {
    for (std::size_t b = 0; b < first.blocks.size(); ++b) {
      const PageId page = first.blocks[b] + group * PageTable::kRun;
      const SlotId slot = slot_below(page);
      if (slot == kNoSlot || known_entry(page) != kernels::kAbsentPage) continue;
      if (home_slots_->free() == 0) LEHR_TRY(carry());
      const auto free = home_slots_->take();
      if (!free) return refused(Reason::kOverBudget, "cuda machine: no spare place for boxes");
      wanted.push_back({slot, page, ledger_.tier(below_)[slot].version, *free});
      at.push_back(group * std::size_t{shape_.max_pages} + b);
    }
  }
  return carry();
}

}  // namespace lehr::runtime::cuda
