// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/page_entry.hpp"
#include "kernels/rows.hpp"
#include "runtime/contents/kv_device.hpp"
#include "runtime/runtime.hpp"

namespace lehr::contents {

/// The page tables that a device reads, as the host knows them: [layers][rows][kv_heads][pages],
/// and where the pages really lie. A row is a place in the batch. Changes are collected as writes.
///
/// Slots of HBM keep what was put there until something else is: a page that the step loop dropped
/// is read there until its slot is taken, which costs nothing and is never wrong.
class DeviceRows {
 public:
  struct Layout {
    KvGeometry geometry;
    DType dtype = DType::kF16;
    std::uint32_t page_bytes = 0;
    TierId home = 0;
    std::uint64_t hbm = 0;          ///< address of slot 0
    std::uint64_t home_base = 0;    ///< likewise
    std::uint64_t home_stride = 0;  ///< from slot to slot
  };

  void begin(const Layout& layout, const runtime::Runtime& runtime, std::uint32_t hbm_slots);
  /// Room for so many rows and pages; what is there must be sent anew.
  void resize(std::uint32_t rows, std::uint32_t pages);
  std::uint32_t rows() const { return rows_; }
  std::uint32_t pages() const { return pages_; }
  std::size_t layer_words() const {
    return std::size_t{rows_} * layout_.geometry.kv_heads * pages_;
  }

  // ---- slots

  /// Something else is about to be written there.
  void take(SlotId slot);
  /// Counts how often a slot was taken.
  std::uint32_t generation(SlotId slot) const { return generation_[slot]; }
  /// The page's contents are in the slot, for what is enqueued from here on.
  void put(SlotId slot, PageId page);
  std::uint64_t hbm(SlotId slot) const {
    return layout_.hbm + std::uint64_t{slot} * layout_.page_bytes;
  }
  std::uint64_t home(SlotId slot) const {
    return layout_.home_base + std::uint64_t{slot} * layout_.home_stride;
  }
  /// Where a full page is read now; kAbsentPage: nowhere.
  kernels::PageEntry entry_of(PageId page) const;
  /// Whether it can be read in HBM, and at home.
  bool in_hbm(PageId page) const;
  bool at_home(PageId page) const;
  /// The page may be read elsewhere now.
  void touch(PageId page) { touched_.push_back(page); }

  // ---- rows

  /// Row `row` holds this sequence from here on: `tail` is the address of its partial page of group
  /// 0, with `tail_page` its place, or kNoTail. `stamp` names the sequence for ever. Returns the
  /// first page that is another than before.
  static constexpr std::uint32_t kNoTail = ~0U;
  std::uint32_t hold(std::uint32_t row, std::uint64_t stamp, std::span<const PageId> blocks,
                     std::uint64_t tail, std::uint32_t tail_page);
  /// Pages from `first` on may be others when the sequence comes next.
  void forget(std::uint64_t stamp, std::size_t first);
  /// Likewise, all that are not the same as these.
  void forget_other(std::uint64_t stamp, std::span<const PageId> blocks);

  /// What changed since the last call; valid until the next.
  std::span<const kernels::WordWrite> take_writes();
  /// Pages of the first `rows` rows that are read over a link.
  bool any_over_link(std::uint32_t rows) const;

 private:
  struct Row {
    std::uint64_t stamp = 0;  ///< 0: nobody's
    std::vector<PageId> blocks;
    std::uint64_t tail = 0;
    std::uint32_t tail_page = kNoTail;
    std::uint64_t over_link = 0;
  };
  void set(std::uint32_t row, std::uint32_t group, std::uint32_t page, kernels::PageEntry entry);
  void leave_blocks(std::uint32_t row, std::size_t first);
  void refresh(PageId page);

  Layout layout_;
  const runtime::Runtime* runtime_ = nullptr;
  std::uint32_t rows_ = 0;
  std::uint32_t pages_ = 0;
  std::vector<kernels::PageEntry> mirror_;
  std::vector<Row> held_;
  std::unordered_map<PageId, std::vector<std::uint32_t>> rows_of_;  ///< by block
  std::vector<PageId> in_slot_;
  std::vector<std::uint32_t> generation_;
  std::vector<PageId> touched_;
  std::vector<std::size_t> changed_;  ///< words of the mirror
  std::vector<kernels::WordWrite> taken_;
};

}  // namespace lehr::contents
