// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

/// Adaptive replacement cache (Megiddo and Modha, FAST 2003): T1 holds pages seen once lately, T2
/// pages seen more often, B1 and B2 remember what left each; hits in them move the share of T1.
class Arc final : public Replacement {
 public:
  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    capacity_ = capacity;
    target_ = 0;
    adapted_ = kNoPage;
    lists_.reset(kLists, id_bound);
    where_.assign(id_bound, kNowhere);
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    lists_.rewind();
    for (const PageId id : ids) {
      lists_.transfer(where_[id], kT2, id);
      where_[id] = kT2;
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    adapt(incoming);
    const std::uint32_t t1 = lists_.size(kT1);
    const bool first = t1 > target_ || (t1 == target_ && place(incoming) == kB2);
    const PageId v = lists_.oldest_free(first ? kT1 : kT2, guard);
    if (v != kNoPage) return v;
    const PageId other = lists_.oldest_free(first ? kT2 : kT1, guard);
    if (other == kNoPage) adapted_ = kNoPage;  // the visit ends here: the next adapts anew
    return other;
  }

  void evict(PageId id) override {
    const std::uint8_t ghost = where_[id] == kT1 ? kB1 : kB2;
    lists_.transfer(where_[id], ghost, id);
    where_[id] = ghost;
  }

  void insert(PageId id, Tick /*next_use*/) override {
    lists_.reach(id);
    if (id >= where_.size()) {
      where_.resize(std::max<std::size_t>(id + std::size_t{1}, where_.size() * 2), kNowhere);
    }
    adapt(id);
    adapted_ = kNoPage;
    if (where_[id] == kNowhere) {
      lists_.push_newest(kT1, id);
      where_[id] = kT1;
    } else {
      lists_.transfer(where_[id], kT2, id);
      where_[id] = kT2;
    }
    trim();
  }

  void erase(PageId id) override {
    if (place(id) == kNowhere) return;
    lists_.remove(where_[id], id);
    where_[id] = kNowhere;
  }

 private:
  static constexpr std::uint8_t kT1 = 0, kT2 = 1, kB1 = 2, kB2 = 3, kLists = 4, kNowhere = 4;

  std::uint8_t place(PageId id) const { return id < where_.size() ? where_[id] : kNowhere; }

  /// Once a miss, before its victim is chosen: a hit in a ghost list moves the target of T1.
  void adapt(PageId id) {
    if (id == kNoPage || adapted_ == id) return;
    adapted_ = id;
    const std::uint32_t b1 = lists_.size(kB1);
    const std::uint32_t b2 = lists_.size(kB2);
    if (place(id) == kB1) {
      target_ = std::min(capacity_, target_ + std::max(1U, b2 / b1));
    } else if (place(id) == kB2) {
      target_ -= std::min(target_, std::max(1U, b1 / b2));
    }
  }

  /// |T1| + |B1| <= c, all four together <= 2c.
  void trim() {
    while (lists_.size(kT1) + lists_.size(kB1) > capacity_ && lists_.size(kB1) > 0) forget(kB1);
    while (lists_.size(kT1) + lists_.size(kT2) + lists_.size(kB1) + lists_.size(kB2) >
               std::uint64_t{2} * capacity_ &&
           lists_.size(kB2) > 0) {
      forget(kB2);
    }
  }
  void forget(std::uint8_t list) {
    const PageId id = lists_.oldest(list);
    lists_.remove(list, id);
    where_[id] = kNowhere;
  }

  std::uint32_t capacity_ = 0;
  std::uint32_t target_ = 0;  ///< wanted size of T1
  PageId adapted_ = kNoPage;
  IndexLists lists_;
  std::vector<std::uint8_t> where_;
};

}  // namespace

const PolicyDescriptor& arc_descriptor() {
  static const PolicyDescriptor descriptor{
      "arc",
      "adaptive replacement: balances recency and frequency by what it evicted too early",
      {},
      {.block_cache = true},
      nullptr,
      [](const Parameters&) -> std::unique_ptr<Replacement> { return std::make_unique<Arc>(); },
  };
  return descriptor;
}

}  // namespace lehr::placement
