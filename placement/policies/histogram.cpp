// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "placement/policies/aged_counts.hpp"
#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"ageing",
                  "visits after which all counts are halved, in multiples of the capacity", 10, 0.1,
                  1e6},
    ParameterInfo{"threshold",
                  "1: only pages of the hot set are installed; 0: any that is hotter than another",
                  1, 0, 1},
};

/// Counts the visits of all pages, resident or not, and keeps a histogram of the counts. The hot
/// set is what lies above the threshold at which it just fills HBM: only hot pages are installed,
/// and only for colder ones.
class Histogram final : public Replacement {
 public:
  explicit Histogram(const Parameters& p)
      : ageing_(p.at("ageing")), hot_only_(p.at("threshold") > 0.5) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    capacity_ = capacity;
    lists_.reset(kTop + 1, id_bound);
    counts_.reset(id_bound, kTop);
    pages_.fill(0);
    period_ = static_cast<std::uint64_t>(ageing_ * capacity) + 1;
    visits_ = 0;
    lowest_ = 0;
    threshold_ = 0;
    stale_ = 0;
    counted_ = kNoPage;
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    lists_.rewind();
    for (const PageId id : ids) {
      const std::uint32_t before = counts_.count(id);
      count_visit(id);
      lists_.transfer(before, counts_.count(id), id);
      age_if_due();
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    std::uint32_t limit = kTop + 1;
    if (incoming != kNoPage) {
      count_miss(incoming);
      limit = counts_.count(incoming);
      if (hot_only_ && limit < threshold()) return bypass(incoming);
    }
    while (lowest_ < kTop && lists_.size(lowest_) == 0) ++lowest_;
    for (std::uint32_t c = lowest_; c < limit; ++c) {
      if (lists_.size(c) == 0) continue;
      const PageId v = lists_.oldest_free(c, guard);
      if (v != kNoPage) return v;
    }
    return bypass(incoming);
  }

  void evict(PageId id) override { lists_.remove(counts_.count(id), id); }

  void insert(PageId id, Tick /*next_use*/) override {
    count_miss(id);
    counted_ = kNoPage;
    lists_.reach(id);
    lists_.push_newest(counts_.count(id), id);
    lowest_ = std::min(lowest_, counts_.count(id));
    age_if_due();
  }

  void erase(PageId id) override {
    counts_.reach(id);
    const std::uint32_t count = counts_.count(id);
    if (lists_.linked(id)) lists_.remove(count, id);
    if (count > 0) --pages_[count];
    counts_.set(id, 0);
    if (counted_ == id) counted_ = kNoPage;
  }

 private:
  static constexpr std::uint32_t kTop = 255;

  void count_visit(PageId id) {
    const std::uint32_t before = counts_.count(id);
    if (before > 0) --pages_[before];
    counts_.set(id, before + 1);
    ++pages_[counts_.count(id)];
    ++visits_;
    ++stale_;
  }

  /// A miss is counted once, whether victim() or insert() hears of it first.
  void count_miss(PageId id) {
    if (counted_ == id) return;
    counts_.reach(id);
    count_visit(id);
    counted_ = id;
  }

  /// The visit ends without an insert: the next one counts anew.
  PageId bypass(PageId incoming) {
    counted_ = kNoPage;
    return incoming;
  }

  void age_if_due() {
    if (visits_ < period_) return;
    visits_ = 0;
    lists_.rewind();
    counts_.age();
    for (std::uint32_t c = 1; c <= kTop; ++c) {
      lists_.splice(c, c / 2);
      if (c == 1) {
        pages_[1] = 0;
      } else {
        const std::uint32_t moved = pages_[c];
        pages_[c] = 0;
        pages_[c / 2] += moved;
      }
    }
    lowest_ = 0;
    stale_ = capacity_;
  }

  /// The lowest count above which no more pages lie than HBM holds; looked up again now and then.
  std::uint32_t threshold() {
    if (stale_ * 64 < capacity_) return threshold_;
    stale_ = 0;
    std::uint64_t above = 0;
    threshold_ = kTop;
    while (threshold_ > 1) {
      above += pages_[threshold_];
      if (above > capacity_) return ++threshold_;
      --threshold_;
    }
    return threshold_;
  }

  double ageing_;
  bool hot_only_;
  std::uint32_t capacity_ = 0;
  IndexLists lists_;  ///< residents, a list a count
  AgedCounts counts_;
  std::array<std::uint32_t, kTop + 1> pages_{};  ///< pages of each count, but 0
  std::uint64_t period_ = 1;
  std::uint64_t visits_ = 0;
  std::uint64_t stale_ = 0;
  std::uint32_t lowest_ = 0;
  std::uint32_t threshold_ = 0;
  PageId counted_ = kNoPage;
};

}  // namespace

const PolicyDescriptor& histogram_descriptor() {
  static const PolicyDescriptor descriptor{
      "histogram",
      "installs pages above the access count at which the hot set just fills HBM",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> {
        return std::make_unique<Histogram>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
