// SPDX-License-Identifier: Apache-2.0
// What a layer does, as lists for the device.
#include <algorithm>

#include <fmt/core.h>

#include "kernels/base/check.hpp"
#include "runtime/machines/cuda/decode_machine.hpp"
#include "runtime/page_table.hpp"

namespace lehr::runtime::cuda {

using kernels::PageEntry;

namespace {
constexpr std::uint32_t kNoGroup = ~0U;
constexpr std::size_t kPrefetch = 16;  ///< reads ahead
}  // namespace

void DecodeMachine::begin_layer(const LayerWork& work) {
  tick_ = work.step * options_.geometry.layers + work.layer;
  layer_ = work.layer;
  reads_begun_ = false;
  record_ = {};
  record_.over_link = work.misses;
  for (auto* list : {&row_starts_, &tails_, &names_}) list->clear();
  pages_.clear();
  early_.clear();
  entries_.clear();
  installs_.clear();
  moves_.clear();
  early_places_.clear();
}

// ---------------------------------------------------------------------- operations

Status DecodeMachine::list_fill(const PageOp& op) {
  const std::uint32_t tokens = op.tokens != 0 ? op.tokens : shape_.page_tokens;
  if (op.to != kHbm || !ledger_.has(op.to, op.to_slot))
    return internal_error("cuda machine: a layer writes its token elsewhere than in HBM");
  const SlotContents& there = ledger_.tier(op.to)[op.to_slot];
  const bool grows = there.page == op.page && there.tokens + 1 == tokens;
  if (!grows && tokens > 1) {  // another sequence's tail was copied on write
    early_.push_back({0, address(op.to, op.to_slot), contents_name(op.page), tokens - 1});
  }
  put(op.to, op.to_slot, {op.page, op.version, tokens});
  return {};
}

Status DecodeMachine::list_fetch(const PageOp& op) {
  LEHR_TRY(expect(op.from, op.from_slot, op.page, op.version));
  if (op.to != kHbm || !ledger_.has(op.to, op.to_slot))
    return internal_error("cuda machine: a page is kept elsewhere than in HBM");
  put(op.to, op.to_slot, ledger_.tier(op.from)[op.from_slot]);
  kept_[op.page] = 1;
  ++to_keep_;
  ++record_.installed;
  return {};
}

/// Where a copy of this layer's reads from; what early work brings is read where it came from.
std::uint64_t DecodeMachine::source(TierId tier, SlotId slot) {
  if (below_ == 0 || tier != home_) return address(tier, slot);
  const std::uint32_t at = home_slots_->place(slot);
  home_slots_->use(at, launched_);
  below_tier_->need(at);
  for (const auto& [filled, from] : early_places_) {
    if (filled == at) return from;
  }
  return memory_[home_].address(at);
}

/// From the file up into the home tier.
Status DecodeMachine::list_stage(const PageOp& op) {
  LEHR_ASSIGN(const auto still,
              below_tier_->stage(op.page, op.version, op.from_slot, op.to_slot, launched_));
  if (still) {
    LEHR_ASSIGN(const std::uint32_t to, below_tier_->into(op.to_slot, launched_));
    const std::uint64_t from = memory_[home_].address(*still);
    early_.push_back({from, memory_[home_].address(to), op.page, 0});
    early_places_.emplace_back(to, from);
  }
  ++step().below.staged;
  return {};
}

Status DecodeMachine::list_sink(const PageOp& op) {
  ++step().below.sunk;
  return below_tier_->sink(op.page, op.version, home_slots_->place(op.from_slot), op.to_slot);
}

Status DecodeMachine::list_copy(const PageOp& op) {
  LEHR_TRY(expect(op.from, op.from_slot, op.page, op.version));
  if (!ledger_.has(op.to, op.to_slot)) return unsupported("cuda machine: a tier without places");
  if (below_ != 0 && op.from == below_) {
    LEHR_TRY(list_stage(op));
  } else if (below_ != 0 && op.to == below_) {
    LEHR_TRY(list_sink(op));
  } else {
    const std::uint64_t from = source(op.from, op.from_slot);
    if (below_ != 0 && op.to == home_) {
      LEHR_TRY(below_tier_->into(op.to_slot, launched_));
    }
    const std::uint64_t to = address(op.to, op.to_slot);
    if (reads_begun_) {
      moves_.push_back({from, to});
      ++(op.to == kHbm ? record_.arrived : record_.written);
    } else {
      early_.push_back({from, to, op.page, 0});
    }
  }
  put(op.to, op.to_slot, ledger_.tier(op.from)[op.from_slot]);
  return {};
}

Status DecodeMachine::list_op(const PageOp& op) {
  reads_begun_ |= op.kind != PageOp::Kind::kCopy;
  switch (op.kind) {
    case PageOp::Kind::kFill:
      return list_fill(op);
    case PageOp::Kind::kFetch:
      return list_fetch(op);
    case PageOp::Kind::kCopy:
      return list_copy(op);
    default:
      return internal_error("cuda machine: an operation that layers do not have");
  }
}

// ---------------------------------------------------------------------- reads

void DecodeMachine::write_entry(std::size_t at, PageEntry entry) {
  mirror_[layer_][at] = entry;
  entries_.push_back({entry, static_cast<std::uint32_t>(at), 0});
}

/// The read of a page installs it in the HBM slot that its fetch named. A shared one is kept once.
void DecodeMachine::keep_page(std::size_t at, PageId page) {
  installs_.push_back({address(kHbm, last_slot_[kHbm][page]), static_cast<std::uint32_t>(at), 0});
  newly_installed_.push_back(at);
  install_tick_[at] = tick_;
  kept_[page] = 0;
  --to_keep_;
}

/// A page that is read in its place on the home tier; the place.
std::uint32_t DecodeMachine::read_at_home(SlotId slot, PageId page, std::size_t at) {
  if (kept_[page] != 0) keep_page(at, page);
  if (below_ == 0) return slot;
  const std::uint32_t place = home_slots_->place(slot);
  home_slots_->use(place, launched_);
  below_tier_->need(place);
  return place;
}

/// The pages of a group but its tail. A page is where it was last put, in HBM or at home: entries
/// follow from that, and those that the device has already are not sent.
Status DecodeMachine::list_pages(std::size_t group, const GroupWork& g, std::uint32_t tail) {
  const std::size_t count = g.hits.size();
  if (count == 0) return {};
  if (count > g.pages.size() || g.pages[count - 1] >= tail)
    return internal_error("cuda machine: a group's hits are not those of its pages");
  const SlotId* const slots[] = {last_slot_[home_].data(), last_slot_[kHbm].data()};
  const PageEntry bases[] = {
      kernels::make_entry(memory_[home_].base, memory_[home_].over_link, DType::kF16),
      kernels::make_entry(memory_[kHbm].base, false, DType::kF16)};
  const std::uint64_t strides[] = {memory_[home_].stride, memory_[kHbm].stride};
  const std::size_t first = group * shape_.max_pages;
  const PageEntry* const known = mirror_[layer_].data() + first;
  const bool checked = options_.check_reads || LEHR_CHECKS >= 2;
  for (std::size_t p = 0; p < count; ++p) {
    const std::uint32_t index = g.pages[p];
    const PageId page = g.blocks[index] + g.offset;
    const std::size_t hit = g.hits[p] != 0 ? 1 : 0;
    if (p + kPrefetch < count) {
      const std::uint32_t next = g.pages[p + kPrefetch];
      __builtin_prefetch(known + next);
      __builtin_prefetch(slots[g.hits[p + kPrefetch] != 0 ? 1 : 0] + g.blocks[next] + g.offset);
    }
    SlotId slot = slots[hit][page];
    if (slot == kNoSlot)
      return internal_error(fmt::format("cuda machine: page {} is read where it never was", page));
    if (checked) LEHR_TRY(expect(hit != 0 ? kHbm : home_, slot, page, table_->version[page]));
    if (hit == 0) slot = read_at_home(slot, page, first + index);
    const PageEntry entry = bases[hit] + slot * strides[hit];
    if (known[index] != entry) write_entry(first + index, entry);
    if (named()) names_.push_back(contents_name(page));
  }
  const std::size_t at = pages_.size();
  pages_.resize(at + count);
  std::transform(g.pages.begin(), g.pages.begin() + static_cast<std::ptrdiff_t>(count),
                 pages_.begin() + static_cast<std::ptrdiff_t>(at),
                 [](std::uint32_t index) { return static_cast<std::uint16_t>(index); });
  return {};
}

Status DecodeMachine::list_tail(std::size_t group, const GroupWork& g, std::uint32_t tail) {
  const PageId page = g.blocks[tail] + g.offset;
  const SlotId slot = page < last_slot_[kHbm].size() ? last_slot_[kHbm][page] : kNoSlot;
  if (slot == kNoSlot)
    return internal_error(fmt::format("cuda machine: tail {} was never in HBM", page));
  if (options_.check_reads || LEHR_CHECKS >= 2)
    LEHR_TRY(expect(kHbm, slot, page, table_->version[page]));
  const std::size_t at = group * shape_.max_pages + tail;
  const PageEntry is = entry(kHbm, slot);
  if (mirror_[layer_][at] != is) write_entry(at, is);
  pages_.push_back(static_cast<std::uint16_t>(tail));
  tails_.push_back(contents_name(page));
  if (named()) names_.push_back(tails_.back());
  return {};
}

Status DecodeMachine::list_groups(std::span<const GroupWork> groups) {
  for (std::size_t i = 0; i < by_group_.size(); ++i) {
    row_starts_.push_back(static_cast<std::uint32_t>(pages_.size()));
    if (by_group_[i] == kNoGroup) {
      tails_.push_back(kNoPage);
      continue;
    }
    const GroupWork& g = groups[by_group_[i]];
    const auto tail = static_cast<std::uint32_t>(g.blocks.size() - 1);
    LEHR_TRY(list_pages(i, g, tail));
    LEHR_TRY(list_tail(i, g, tail));
  }
  row_starts_.push_back(static_cast<std::uint32_t>(pages_.size()));
  if (to_keep_ != 0)
    return internal_error("cuda machine: a page is kept that no group reads over the link");
  return {};
}

/// Installs of the layer before are over; places that this layer sets itself are left to it.
void DecodeMachine::clear_old_installs() {
  for (const std::size_t at : installed_at_) {
    if (install_tick_[at] != tick_) installs_.push_back({0, static_cast<std::uint32_t>(at), 0});
  }
  installed_at_.swap(newly_installed_);
  newly_installed_.clear();
}

void DecodeMachine::write_layer(std::uint32_t layer) {
  kernels::LayerLists l{};
  l.rows_at = lists_.put<std::uint32_t>(row_starts_);
  l.pages_at = lists_.put<std::uint16_t>(pages_);
  l.tails_at = lists_.put<std::uint32_t>(tails_);
  if (named()) l.names_at = lists_.put<std::uint32_t>(names_);
  l.early_at = lists_.put<kernels::EarlyWork>(early_);
  l.early = static_cast<std::uint32_t>(early_.size());
  l.entries_at = lists_.put<kernels::EntryWrite>(entries_);
  l.entries = static_cast<std::uint32_t>(entries_.size());
  l.installs_at = lists_.put<kernels::EntryWrite>(installs_);
  l.installs = static_cast<std::uint32_t>(installs_.size());
  l.moves_at = lists_.put<kernels::PageCopy>(moves_);
  l.moves = static_cast<std::uint32_t>(moves_.size());
  lists_.layer(layer, l);
}

}  // namespace lehr::runtime::cuda
