// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

/// The pages in HBM, and of them those that leave next: listed ahead of demand, the coldest at the
/// end, so that taking one is O(1). The list is made anew by sweeps in the background: each slice
/// looks at a part of the residents, takes what scores no more than a threshold and counts the
/// scores, from which the next threshold follows. What was read since it was listed does not leave.
/// Not thread-safe.
class ColdList {
 public:
  void reset(std::uint32_t capacity);

  bool contains(PageId page) const { return page < place_.size() && place_[page] != kNowhere; }
  std::size_t size() const { return residents_.size(); }
  void keep(PageId page);
  void leave(PageId page);
  /// A page was read: it is not among the coldest any more.
  void touched(PageId page) {
    if (page < listed_.size()) listed_[page] = 0;
  }

  /// The coldest listed page that is not held, or kNoPage; it stays listed until it leaves. Entries
  /// that no longer hold are thrown away on the way: O(1), amortised over the sweep that made them.
  PageId coldest(std::span<const std::uint16_t> guard);
  /// Any resident that is not held, or kNoPage. Goes on where the last search ended: O(1), and one
  /// more for each held page in between.
  PageId any(std::span<const std::uint16_t> guard);

  /// A slice of background work, one of `slices` that a sweep is made of: looks at no more than
  /// size() / slices + 1 residents, and sorts the list when it was the last. Does nothing while
  /// more than half of what is wanted (`share` of the residents, twice that where the list ran dry)
  /// is still listed. `score(pages, out)` fills the scores of pages, aligned.
  template <class Score>
  void sweep(std::uint32_t slices, double share, Score&& score) {
    if (!begin_slice(share)) return;
    const std::size_t want = residents_.size() / std::max(1U, slices) + 1;
    const std::size_t n = std::min(next_, threshold_ == kNoThreshold ? next_ : want);
    const std::span<const PageId> pages(residents_.data() + (next_ - n), n);
    scores_.resize(n);
    score(pages, std::span(scores_));
    collect(pages);
    next_ -= n;
    if (next_ == 0) publish();
  }

  /// Entries (each twice: when it is named and when it is gone) and pages looked at by coldest()
  /// and any(), and pages looked at by sweeps: what the work is, independent of any clock.
  std::uint64_t searched() const { return searched_; }
  std::uint64_t swept() const { return swept_; }

 private:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
  static constexpr std::uint32_t kNoThreshold = 0x10000;  ///< nothing counted yet: all are listed
  static constexpr std::uint32_t kFineBits = 5;

  struct Entry {
    PageId page;
    std::uint32_t sweep;
    std::uint16_t score;
  };

  bool begin_slice(double share);
  void collect(std::span<const PageId> pages);
  void publish();
  /// Listed by that sweep or a later one, and not read or gone since.
  bool stands(const Entry& e) const { return listed_[e.page] >= e.sweep; }

  std::vector<PageId> residents_;
  std::vector<std::uint32_t> place_;   ///< by page: index in residents_
  std::vector<std::uint32_t> listed_;  ///< by page: the sweep that listed it; 0: not listed
  std::vector<Entry> list_;            ///< the coldest last
  std::vector<Entry> coming_;          ///< of the sweep under way
  std::vector<Entry> sorted_;
  std::vector<std::uint16_t> scores_;
  std::array<std::uint32_t, std::size_t{1} << (16 - kFineBits)> counts_{};
  std::size_t next_ = 0;  ///< residents below this index are still to be looked at
  std::size_t wanted_ = 0;
  std::size_t hand_ = 0;  ///< of any()
  std::uint32_t threshold_ = kNoThreshold;
  std::uint32_t sweep_ = 1;
  bool sweeping_ = false;
  bool dry_ = false;
  std::uint64_t searched_ = 0;
  std::uint64_t swept_ = 0;
};

}  // namespace lehr::placement
