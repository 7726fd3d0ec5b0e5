// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/policies/aged_counts.hpp"
#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"window", "share of the capacity for newcomers", 0.01, 0.0001, 0.9},
    ParameterInfo{"protected", "share of the rest for pages visited again", 0.8, 0, 0.99},
    ParameterInfo{"sample",
                  "visits after which all counts are halved, in multiples of the capacity", 10, 0.1,
                  1e6},
};

/// Window TinyLFU (Einziger, Friedman and Manes, TOS 2017): newcomers pass a small window and enter
/// the main part (a segmented LRU) only against a victim that was visited less often. Ids are
/// dense, so counts are exact where the paper has a sketch.
///
/// Where all of the window is held (a layer is missed at once), the newcomer itself stands for it.
class WTinyLfu final : public Replacement {
 public:
  explicit WTinyLfu(const Parameters& p)
      : window_(p.at("window")), protected_(p.at("protected")), sample_(p.at("sample")) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    lists_.reset(kLists, id_bound);
    counts_.reset(id_bound, 15);
    where_.assign(id_bound, kNowhere);
    window_target_ = std::max(1U, static_cast<std::uint32_t>(window_ * capacity));
    const std::uint32_t rest = capacity > window_target_ ? capacity - window_target_ : 0;
    protected_limit_ = static_cast<std::uint32_t>(protected_ * rest);
    period_ = static_cast<std::uint64_t>(sample_ * capacity) + 1;
    visits_ = 0;
    counted_ = kNoPage;
    admitted_ = kNoPage;
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    lists_.rewind();
    for (const PageId id : ids) {
      count_visit(id);
      if (where_[id] != kProbation) {
        lists_.move_to_newest(where_[id], id);
        continue;
      }
      put(id, kProtected);
      if (lists_.size(kProtected) > protected_limit_) put(lists_.oldest(kProtected), kProbation);
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    PageId defender = lists_.oldest_free(kProbation, guard);
    if (defender == kNoPage) defender = lists_.oldest_free(kProtected, guard);
    PageId candidate = lists_.oldest_free(kWindow, guard);
    if (incoming == kNoPage) return candidate != kNoPage ? candidate : defender;
    count_miss(incoming);
    if (lists_.size(kWindow) < window_target_ && defender != kNoPage) return defender;
    if (candidate == kNoPage) candidate = incoming;
    if (defender == kNoPage || counts_.count(candidate) <= counts_.count(defender)) {
      if (candidate == incoming) counted_ = kNoPage;  // the visit ends here: the next counts anew
      return candidate;
    }
    if (candidate == incoming) {
      admitted_ = incoming;
    } else {
      put(candidate, kProbation);
    }
    return defender;
  }

  void evict(PageId id) override {
    lists_.remove(where_[id], id);
    where_[id] = kNowhere;
  }

  void insert(PageId id, Tick /*next_use*/) override {
    lists_.reach(id);
    if (id >= where_.size()) {
      where_.resize(std::max<std::size_t>(id + std::size_t{1}, where_.size() * 2), kNowhere);
    }
    count_miss(id);
    // What overflows the window while there is room goes on to probation without a contest.
    if (admitted_ != id && lists_.size(kWindow) >= window_target_) {
      const PageId oldest = lists_.oldest(kWindow);
      put(oldest, kProbation);
    }
    where_[id] = admitted_ == id ? kProbation : kWindow;
    lists_.push_newest(where_[id], id);
    counted_ = kNoPage;
    admitted_ = kNoPage;
  }

  void erase(PageId id) override {
    if (id < where_.size() && where_[id] != kNowhere) evict(id);
    counts_.reach(id);
    counts_.set(id, 0);
  }

 private:
  static constexpr std::uint8_t kWindow = 0, kProbation = 1, kProtected = 2, kLists = 3,
                                kNowhere = 3;

  void put(PageId id, std::uint8_t list) {
    lists_.transfer(where_[id], list, id);
    where_[id] = list;
  }

  void count_visit(PageId id) {
    counts_.set(id, counts_.count(id) + 1);
    if (++visits_ < period_) return;
    visits_ = 0;
    counts_.age();
  }

  /// A miss is counted once, whether victim() or insert() hears of it first.
  void count_miss(PageId id) {
    if (counted_ == id) return;
    counted_ = id;
    counts_.reach(id);
    count_visit(id);
  }

  double window_;
  double protected_;
  double sample_;
  std::uint32_t window_target_ = 1;
  std::uint32_t protected_limit_ = 0;
  std::uint64_t period_ = 1;
  std::uint64_t visits_ = 0;
  PageId counted_ = kNoPage;
  PageId admitted_ = kNoPage;  ///< won against a victim by itself: it needs no window
  IndexLists lists_;
  AgedCounts counts_;
  std::vector<std::uint8_t> where_;
};

}  // namespace

const PolicyDescriptor& w_tinylfu_descriptor() {
  static const PolicyDescriptor descriptor{
      "w-tinylfu",
      "newcomers stay only against a page that was visited less often",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> {
        return std::make_unique<WTinyLfu>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
