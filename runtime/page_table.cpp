// SPDX-License-Identifier: Apache-2.0
#include "runtime/page_table.hpp"

#include <fmt/core.h>

#include "kernels/base/check.hpp"

namespace lehr::runtime {

SlotId SlotPool::take() {
  if (!free_.empty()) {
    const SlotId slot = free_.back();
    free_.pop_back();
    return slot;
  }
  return next_ < capacity_ ? next_++ : kNoSlot;
}

PageTable::PageTable(std::uint32_t layers, std::uint32_t kv_heads,
                     std::span<const std::uint32_t> tier_slots, PageSizes sizes)
    : slot(tier_slots.size()),
      layers_(layers),
      kv_heads_(kv_heads),
      chunk_rows_(layers * kv_heads * kRun),
      sizes_(sizes) {
  LEHR_CHECK(1, tier_slots.size() >= 2 && tier_slots.size() <= kMaxTiers);
  pools_.reserve(tier_slots.size());
  for (const std::uint32_t n : tier_slots) pools_.emplace_back(n);
}

PageId PageTable::open_chunk() {
  if (!free_chunks_.empty()) {
    const std::uint32_t chunk = free_chunks_.back();
    free_chunks_.pop_back();
    chunk_closed_[chunk] = 0;
    return chunk * chunk_rows_;
  }
  const auto chunk = static_cast<std::uint32_t>(chunk_closed_.size());
  const std::size_t rows = (std::size_t{chunk} + 1) * chunk_rows_;
  residency.resize(rows);
  flags.resize(rows);
  guard.resize(rows);
  layer.resize(rows);
  sequence.resize(rows);
  position.resize(rows);
  version.resize(rows);
  last_tick.resize(rows, kNever);
  if (sizes_.lowered != 0) lowered.resize(rows);
  for (auto& column : slot) column.resize(rows, kNoSlot);
  chunk_closed_.push_back(0);
  block_refs_.resize(chunk_closed_.size() * kRun);
  return chunk * chunk_rows_;
}

void PageTable::open_block(PageId base, std::uint32_t at, std::uint16_t owner) {
  LEHR_CHECK(2, block_refs_[block_index(base)] == 0);
  block_refs_[block_index(base)] = 1;
  ++live_blocks_;
  for (std::uint32_t g = 0; g < layers_ * kv_heads_; ++g) {
    const PageId page = base + g * kRun;
    residency[page] = 0;
    flags[page] = 0;
    guard[page] = 0;
    layer[page] = static_cast<std::uint16_t>(g / kv_heads_);
    sequence[page] = owner;
    position[page] = at;
    ++version[page];  // rows are used again: a version never repeats for a row
    last_tick[page] = kNever;
    if (!lowered.empty()) lowered[page] = 0;
  }
}

void PageTable::close_block(PageId base) {
  --live_blocks_;
  abandon_rest(base, kRun - 1);
}

void PageTable::abandon_rest(PageId chunk_or_block, std::uint32_t opened) {
  if (opened == kRun) return;  // its last block's end has given it back, or will
  const std::uint32_t chunk = chunk_or_block / chunk_rows_;
  chunk_closed_[chunk] = static_cast<std::uint8_t>(chunk_closed_[chunk] + (kRun - opened));
  LEHR_CHECK(1, chunk_closed_[chunk] <= kRun);
  if (chunk_closed_[chunk] == kRun) free_chunks_.push_back(chunk);
}

PageColumns PageTable::columns() const {
  return {residency, guard, position, layer, sequence, {}, {}, lowered};
}

bool PageTable::reserve(PageId page, TierId tier) {
  LEHR_CHECK(2, slot[tier][page] == kNoSlot);
  const SlotId taken = pools_[tier].take();
  if (taken == kNoSlot) return false;
  slot[tier][page] = taken;
  return true;
}

void PageTable::drop(PageId page, TierId tier) {
  LEHR_CHECK(2, slot[tier][page] != kNoSlot);
  pools_[tier].give(slot[tier][page]);
  slot[tier][page] = kNoSlot;
  residency[page] &= static_cast<Residency>(~tier_bit(tier));
}

Status PageTable::validate() const {
  for (std::size_t tier = 0; tier < slot.size(); ++tier) {
    std::vector<bool> taken(pools_[tier].capacity());
    std::uint32_t used = 0;
    for (PageId page = 0; page < rows(); ++page) {
      const SlotId s = slot[tier][page];
      const bool valid = resident(residency[page], static_cast<TierId>(tier));
      if (s == kNoSlot) {
        if (valid)
          return internal_error(fmt::format("page {} valid in tier {} without a slot", page, tier));
        continue;
      }
      if (s >= taken.size() || taken[s]) {
        return internal_error(
            fmt::format("slot {} of tier {} out of range or held twice (page {})", s, tier, page));
      }
      taken[s] = true;
      ++used;
    }
    if (used != pools_[tier].used()) {
      return internal_error(fmt::format("tier {}: {} slots held by pages, {} in use", tier, used,
                                        pools_[tier].used()));
    }
  }
  return {};
}

}  // namespace lehr::runtime
