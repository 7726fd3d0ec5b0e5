// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/exchange.hpp"
#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::runtime {

/// Slots of one tier: a bump pointer, then a free list, so that a large empty tier costs nothing.
class SlotPool {
 public:
  explicit SlotPool(std::uint32_t capacity = 0) : capacity_(capacity) {}

  SlotId take();  ///< kNoSlot if full
  void give(SlotId slot) { free_.push_back(slot); }
  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t used() const { return next_ - static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t available() const { return capacity_ - used(); }

 private:
  std::uint32_t capacity_;
  std::uint32_t next_ = 0;
  std::vector<SlotId> free_;
};

/// What a page takes of a link and of HBM.
struct PageSizes {
  Bytes full = 0;
  Bytes lowered = 0;  ///< of a page at the lower precision; 0: no page is ever lowered
};

enum PageFlag : std::uint8_t {
  kTail = 1,            ///< being written: in HBM, pinned, no other copy
  kInFlight = 2,        ///< a promotion is on its way, its HBM slot is reserved
  kPromotedUnread = 4,  ///< arrived ahead of need and not read since
  kInstalling = 8,      ///< missed in the current layer and kept: the read fills its HBM slot
};

/// Who has which copy of which page: structure of arrays, one row a page. Rows are handed
/// out in blocks: the pages of one token block (all layers and KV heads) share a reference count
/// and are born and freed together. Page of (block, layer, head) = block + (layer * kv_heads +
/// head) * kRun, so that neighbouring token blocks of one KV group lie side by side, in runs of
/// kRun.
class PageTable {
 public:
  static constexpr std::uint32_t kRun = 64;

  /// `tier_slots[i]` slots in tier i; at most kMaxTiers.
  PageTable(std::uint32_t layers, std::uint32_t kv_heads, std::span<const std::uint32_t> tier_slots,
            PageSizes sizes = {});

  /// A chunk of kRun token blocks for one sequence; its first block's base id.
  PageId open_chunk();

  /// A new block at `base` (inside a chunk), for position `position`, reference count 1, no copy
  /// anywhere.
  void open_block(PageId base, std::uint32_t position, std::uint16_t sequence);
  void share_block(PageId base) { ++block_refs_[block_index(base)]; }
  std::uint16_t block_refs(PageId base) const { return block_refs_[block_index(base)]; }
  /// Drops one reference; true if it was the last: the caller then frees the pages' slots.
  bool unshare_block(PageId base) { return --block_refs_[block_index(base)] == 0; }
  /// The block's rows may be used again once its whole chunk is given back.
  void close_block(PageId base);
  /// Blocks of a chunk that were never opened.
  void abandon_rest(PageId chunk, std::uint32_t opened);

  std::uint32_t group_offset(std::uint32_t of_layer, std::uint32_t head) const {
    return (of_layer * kv_heads_ + head) * kRun;
  }
  /// Numbers token blocks; of any page of the block.
  std::uint32_t block_index(PageId page) const { return page / chunk_rows_ * kRun + page % kRun; }
  std::uint32_t rows() const { return static_cast<std::uint32_t>(residency.size()); }
  std::uint32_t live_pages() const { return live_blocks_ * layers_ * kv_heads_; }
  PageColumns columns() const;

  /// Of the page as it is stored now, in whatever tier.
  Bytes bytes(PageId page) const { return is_lowered(page) ? sizes_.lowered : sizes_.full; }
  bool is_lowered(PageId page) const { return !lowered.empty() && lowered[page] != 0; }
  const PageSizes& sizes() const { return sizes_; }

  SlotPool& slots(TierId tier) { return pools_[tier]; }
  const SlotPool& slots(TierId tier) const { return pools_[tier]; }

  /// Takes a slot for the page in the tier; false if the tier is full. The copy is not valid yet.
  bool reserve(PageId page, TierId tier);
  void mark_valid(PageId page, TierId tier) { residency[page] |= tier_bit(tier); }
  /// Gives the slot back; the copy is gone.
  void drop(PageId page, TierId tier);

  /// Of all columns together.
  std::size_t bytes_per_page() const {
    return sizeof(residency[0]) + sizeof(flags[0]) + sizeof(guard[0]) + sizeof(layer[0]) +
           sizeof(sequence[0]) + sizeof(position[0]) + sizeof(version[0]) + sizeof(last_tick[0]) +
           (sizes_.lowered != 0 ? sizeof(std::uint8_t) : 0) + slot.size() * sizeof(SlotId);
  }

  /// Every slot belongs to one page at most, residency agrees with slots, counts add up. O(pages).
  Status validate() const;

  // The columns. Public: the step loop is their one writer and reads them in its inner loops.
  std::vector<Residency> residency;
  std::vector<std::uint8_t> flags;
  std::vector<std::uint16_t> guard;
  std::vector<std::uint16_t> layer;
  std::vector<std::uint16_t> sequence;
  std::vector<std::uint32_t> position;
  std::vector<std::uint32_t> version;     ///< of the contents; rises when a tail is written
  std::vector<Tick> last_tick;            ///< last layer that selected it; kNever before that
  std::vector<std::uint8_t> lowered;      ///< 1: at the lower precision; empty where none may be
  std::vector<std::vector<SlotId>> slot;  ///< by tier

 private:
  std::uint32_t layers_;
  std::uint32_t kv_heads_;
  std::uint32_t chunk_rows_;
  PageSizes sizes_;
  std::uint32_t live_blocks_ = 0;
  std::vector<SlotPool> pools_;
  std::vector<std::uint16_t> block_refs_;
  std::vector<std::uint8_t> chunk_closed_;  ///< blocks of each chunk that will not be used again
  std::vector<std::uint32_t> free_chunks_;
};

}  // namespace lehr::runtime
