// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/device_rows.hpp"

#include <algorithm>

namespace lehr::contents {

using kernels::PageEntry;
using runtime::PageTable;

void DeviceRows::begin(const Layout& layout, const runtime::Runtime& runtime,
                       std::uint32_t hbm_slots) {
  layout_ = layout;
  runtime_ = &runtime;
  in_slot_.assign(hbm_slots, kNoPage);
  generation_.assign(hbm_slots, 0);
}

void DeviceRows::resize(std::uint32_t rows, std::uint32_t pages) {
  rows_ = rows;
  pages_ = pages;
  mirror_.assign(std::size_t{layout_.geometry.layers} * layer_words(), kernels::kAbsentPage);
  held_.assign(rows, {});
  rows_of_.clear();
  changed_.clear();
}

// ---------------------------------------------------------------------- slots

void DeviceRows::take(SlotId slot) {
  ++generation_[slot];
  if (in_slot_[slot] == kNoPage) return;
  touched_.push_back(in_slot_[slot]);
  in_slot_[slot] = kNoPage;
}

void DeviceRows::put(SlotId slot, PageId page) {
  in_slot_[slot] = page;
  touched_.push_back(page);
}

bool DeviceRows::in_hbm(PageId page) const {
  const PageTable& table = runtime_->table();
  if (!resident(table.residency[page], kHbm)) return false;
  const SlotId slot = table.slot[kHbm][page];
  return slot < in_slot_.size() && in_slot_[slot] == page;
}

bool DeviceRows::at_home(PageId page) const {
  return resident(runtime_->table().residency[page], layout_.home);
}

PageEntry DeviceRows::entry_of(PageId page) const {
  const PageTable& table = runtime_->table();
  if (in_hbm(page)) return kernels::make_entry(hbm(table.slot[kHbm][page]), false, layout_.dtype);
  if (!at_home(page)) return kernels::kAbsentPage;
  return kernels::make_entry(home(table.slot[layout_.home][page]), true, layout_.dtype);
}

// ---------------------------------------------------------------------- rows

void DeviceRows::set(std::uint32_t row, std::uint32_t group, std::uint32_t page, PageEntry entry) {
  const std::uint32_t heads = layout_.geometry.kv_heads;
  const std::size_t at =
      ((std::size_t{group / heads} * rows_ + row) * heads + group % heads) * pages_ + page;
  PageEntry& now = mirror_[at];
  if (now == entry) return;
  held_[row].over_link += kernels::entry_over_link(entry) ? 1 : 0;
  held_[row].over_link -= kernels::entry_over_link(now) ? 1 : 0;
  now = entry;
  changed_.push_back(at);
}

void DeviceRows::leave_blocks(std::uint32_t row, std::size_t first) {
  Row& r = held_[row];
  for (std::size_t b = first; b < r.blocks.size(); ++b) {
    const auto found = rows_of_.find(r.blocks[b]);
    std::erase(found->second, row);
    if (found->second.empty()) rows_of_.erase(found);
    for (std::uint32_t group = 0; group < layout_.geometry.groups(); ++group)
      set(row, group, static_cast<std::uint32_t>(b), kernels::kAbsentPage);
  }
  r.blocks.resize(std::min(first, r.blocks.size()));
}

std::uint32_t DeviceRows::hold(std::uint32_t row, std::uint64_t stamp,
                               std::span<const PageId> blocks, std::uint64_t tail,
                               std::uint32_t tail_page) {
  Row& r = held_[row];
  std::size_t same = 0;
  if (r.stamp == stamp) {
    const auto ends = std::mismatch(r.blocks.begin(), r.blocks.end(), blocks.begin(), blocks.end());
    same = static_cast<std::size_t>(ends.first - r.blocks.begin());
  }
  leave_blocks(row, same);
  r.stamp = stamp;
  const bool other_tail = r.tail != tail || r.tail_page != tail_page;
  // What was the tail and is no more lies in a slot now.
  if (other_tail && r.tail_page != kNoTail && r.tail_page < same) {
    for (std::uint32_t group = 0; group < layout_.geometry.groups(); ++group)
      touch(r.blocks[r.tail_page] + group * PageTable::kRun);
  }
  r.tail = tail;
  r.tail_page = tail_page;
  for (std::size_t b = same; b < blocks.size(); ++b) {
    r.blocks.push_back(blocks[b]);
    rows_of_[blocks[b]].push_back(row);
    if (b == tail_page) continue;
    for (std::uint32_t group = 0; group < layout_.geometry.groups(); ++group) {
      set(row, group, static_cast<std::uint32_t>(b), entry_of(blocks[b] + group * PageTable::kRun));
    }
  }
  for (std::uint32_t group = 0; tail_page != kNoTail && group < layout_.geometry.groups();
       ++group) {
    set(row, group, tail_page,
        kernels::make_entry(tail + std::uint64_t{group} * layout_.page_bytes, false,
                            layout_.dtype));
  }
  return static_cast<std::uint32_t>(same);
}

void DeviceRows::forget(std::uint64_t stamp, std::size_t first) {
  for (std::uint32_t row = 0; row < rows_; ++row) {
    if (held_[row].stamp == stamp) leave_blocks(row, first);
  }
}

void DeviceRows::forget_other(std::uint64_t stamp, std::span<const PageId> blocks) {
  for (std::uint32_t row = 0; row < rows_; ++row) {
    Row& r = held_[row];
    if (r.stamp != stamp) continue;
    const auto ends = std::mismatch(r.blocks.begin(), r.blocks.end(), blocks.begin(), blocks.end());
    leave_blocks(row, static_cast<std::size_t>(ends.first - r.blocks.begin()));
  }
}

void DeviceRows::refresh(PageId page) {
  const PageTable& table = runtime_->table();
  const std::uint32_t chunk = layout_.geometry.groups() * PageTable::kRun;
  const std::uint32_t group = page % chunk / PageTable::kRun;
  const auto found = rows_of_.find(page - group * PageTable::kRun);
  if (found == rows_of_.end()) return;
  const std::uint32_t place = table.position[page];
  for (const std::uint32_t row : found->second) {
    if (place != held_[row].tail_page) set(row, group, place, entry_of(page));
  }
}

std::span<const kernels::WordWrite> DeviceRows::take_writes() {
  for (const PageId page : touched_) refresh(page);
  touched_.clear();
  // In whatever order the device writes them: a word that was set twice is named twice, with what
  // it is now.
  taken_.clear();
  for (const std::size_t at : changed_) taken_.push_back({mirror_[at], at});
  changed_.clear();
  return taken_;
}

bool DeviceRows::any_over_link(std::uint32_t rows) const {
  return std::any_of(held_.begin(), held_.begin() + rows,
                     [](const Row& r) { return r.over_link > 0; });
}

}  // namespace lehr::contents
