// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "placement/model.hpp"
#include "runtime/machine.hpp"
#include "runtime/page_table.hpp"

namespace lehr::runtime {

/// The home tier (host) and the one below it (NVMe). Every full page has a copy in one of them.
/// When the home is full, its least recently read page that nothing holds moves down: a write the
/// first time, free once the tier below has a valid copy. Second chance by the page's last read.
class HomeTier {
 public:
  HomeTier(const placement::Platform& platform, PageTable& table);

  /// Moves pages down until so many places of the home tier are free (their writes are added to
  /// `load` and `ops`). kRefused with kLowerTierBusy or kNoEvictable: some may have moved.
  Status make_room(std::uint32_t places, placement::LayerLoad& load, std::vector<PageOp>* ops);

  /// Reserves a place in the home tier for `page`, moving another page down if need be (its write
  /// is added to `load` and `ops`). kRefused with kLowerTierBusy or kNoEvictable; then nothing
  /// changed.
  Status reserve(PageId page, placement::LayerLoad& load, std::vector<PageOp>* ops);

  /// Set-up form: home if there is room, else the tier below. The copy is valid afterwards.
  Status place(PageId page, std::vector<PageOp>* ops);

  /// The page is only below: brings it up, which the layer has to wait for (or not, if `ahead`).
  Status stage(PageId page, bool ahead, placement::LayerLoad& load, std::vector<PageOp>* ops);

  // Blocks whose pages never move down, for attention that may read any of them. Blocks are kept
  // from the first keep_none() on; before it, none is.
  void keep_none();
  /// Of any page of the block.
  void keep(PageId block) { kept_[table_.block_index(block)] = keeping_; }
  void let_go(PageId block) { kept_[table_.block_index(block)] = 0; }
  bool keeps() const { return keeping_ != 0; }
  bool is_kept(PageId page) const { return keeps() && kept_[table_.block_index(page)] == keeping_; }
  /// Of a block that is new: kept, where any is.
  void opened(PageId block);
  /// Its home copy moved down.
  bool is_down(PageId page) const {
    return has_below() && resident(table_.residency[page], below_) &&
           !resident(table_.residency[page], home_);
  }
  /// Pages of the block that are down.
  std::uint32_t moved_down(PageId block) const {
    return has_below() ? moved_down_[table_.block_index(block)] : 0;
  }

  bool has_below() const { return below_ != 0; }
  TierId home() const { return home_; }
  TierId below() const { return below_; }
  LinkId up_link() const { return up_; }

  /// The page's contents at home are other ones now: a copy below is out of date.
  void rewritten(PageId page);

  /// Forgets the page; its copies are gone from both tiers.
  void release(PageId page);

 private:
  Status move_one_down(placement::LayerLoad& load, std::vector<PageOp>* ops);
  /// After a change of the page's copies; `before`: is_down() before it.
  void count(PageId page, bool before);

  PageTable& table_;
  TierId home_;
  TierId below_ = 0;
  LinkId up_ = placement::kNoLink;
  LinkId down_ = placement::kNoLink;
  std::vector<PageId> clock_;  ///< page of each home slot
  std::vector<Tick> seen_;     ///< its last_tick when the hand last passed
  std::size_t hand_ = 0;
  std::vector<std::uint32_t> moved_down_;  ///< by block
  std::vector<std::uint32_t> kept_;        ///< by block: the keep_none() after which it was
  std::uint32_t keeping_ = 0;
};

}  // namespace lehr::runtime
