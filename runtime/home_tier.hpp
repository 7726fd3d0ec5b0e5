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

  /// Reserves a place in the home tier for `page`, moving another page down if need be (its write
  /// is added to `load` and `ops`). kRefused with kLowerTierBusy or kNoEvictable; then nothing
  /// changed.
  Status reserve(PageId page, placement::LayerLoad& load, std::vector<PageOp>* ops);

  /// Set-up form: home if there is room, else the tier below. The copy is valid afterwards.
  Status place(PageId page, std::vector<PageOp>* ops);

  /// The page is only below: brings it up, which the layer has to wait for (or not, if `ahead`).
  Status stage(PageId page, bool ahead, placement::LayerLoad& load, std::vector<PageOp>* ops);

  bool has_below() const { return below_ != 0; }
  TierId home() const { return home_; }
  TierId below() const { return below_; }
  LinkId up_link() const { return up_; }

  /// The page's contents at home are other ones now: a copy below is out of date.
  void rewritten(PageId page) {
    if (has_below() && table_.slot[below_][page] != kNoSlot) table_.drop(page, below_);
  }

  /// Forgets the page; its copies are gone from both tiers.
  void release(PageId page);

 private:
  Status make_room(placement::LayerLoad& load, std::vector<PageOp>* ops);

  PageTable& table_;
  TierId home_;
  TierId below_ = 0;
  LinkId up_ = placement::kNoLink;
  LinkId down_ = placement::kNoLink;
  std::vector<PageId> clock_;  ///< page of each home slot
  std::vector<Tick> seen_;     ///< its last_tick when the hand last passed
  std::size_t hand_ = 0;
};

}  // namespace lehr::runtime
