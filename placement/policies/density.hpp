// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policies/key_queue.hpp"
#include "placement/replacement.hpp"

namespace lehr::placement {

/// Value density: pages are equally large and a miss of each costs the same, so value per byte is
/// the expected rate of visits, estimated as a sum over past visits that halves every half-life.
/// All pages decay alike, hence their order changes only by visits, and the logarithm of the sum as
/// it would stand at time zero is a key that needs no upkeep (after Lee et al., "LRFU", 2001). Keys
/// are integers, 1/64 of a doubling, so that the order is the same on every machine.
///
/// Time is visits over capacity ("turnovers"). A newcomer that is not denser than the least dense
/// page that may leave is bypassed.
class Density final : public Replacement {
 public:
  explicit Density(double half_life_turnovers) : half_life_(half_life_turnovers) {}

  void reset(std::uint32_t capacity, std::uint32_t id_bound) override {
    queue_.reset(id_bound);
    keys_.assign(id_bound, 0);
    clock_ = 0;
    tick_ = static_cast<std::uint64_t>(0x1p32 * kUnits / (half_life_ * std::max(1U, capacity))) + 1;
    counted_ = kNoPage;
    for (std::size_t d = 0; d < gain_.size(); ++d) {
      gain_[d] = static_cast<std::uint32_t>(
          std::lround(kUnits * std::log2(1.0 + std::exp2(-static_cast<double>(d) / kUnits))));
    }
  }

  void hit(std::span<const PageId> ids, std::span<const Tick> /*next_use*/) override {
    for (const PageId id : ids) {
      if (!note(id)) continue;
      queue_.remove(id);
      queue_.insert(id, keys_[id]);
    }
  }

  PageId victim(PageId incoming, Tick /*next_use*/, std::span<const std::uint16_t> guard) override {
    if (incoming != kNoPage) count_miss(incoming);
    const PageId v = least_dense(guard);
    if (incoming == kNoPage) return v;
    if (v != kNoPage && queue_.key(v) < keys_[incoming]) return v;
    counted_ = kNoPage;  // the visit ends here: the next counts anew
    return v == kNoPage ? v : incoming;
  }

  void evict(PageId id) override { queue_.remove(id); }
  void insert(PageId id, Tick /*next_use*/) override {
    count_miss(id);
    counted_ = kNoPage;
    keep(id);
  }
  void erase(PageId id) override {
    if (queue_.contains(id)) queue_.remove(id);
    if (id < keys_.size()) keys_[id] = 0;
  }

  /// A miss is counted once, whether it is told here, in victim() or in insert().
  void count_miss(PageId id) {
    if (counted_ == id) return;
    if (id >= keys_.size())
      keys_.resize(std::max<std::size_t>(id + std::size_t{1}, keys_.size() * 2), 0);
    note(id);
    counted_ = id;
  }
  /// Becomes resident, its visit counted already.
  void keep(PageId id) { queue_.insert(id, keys_[id]); }
  PageId least_dense(std::span<const std::uint16_t> guard) const {
    PageId v = queue_.min();
    while (v != kNoPage && held(guard, v)) v = queue_.up(v);
    return v;
  }
  std::uint32_t density(PageId id) const { return id < keys_.size() ? keys_[id] : 0; }

 private:
  static constexpr std::uint32_t kUnits = 64;
  static constexpr std::uint32_t kRebase = 1U << 20;

  /// Adds a visit now; whether the key changed.
  bool note(PageId id) {
    clock_ += tick_;
    if (now() >= kRebase) rebase();
    const std::uint32_t t = now();
    const std::uint32_t old = keys_[id];
    const std::uint32_t apart = old > t ? old - t : t - old;
    const std::uint32_t gain = old != 0 && apart < gain_.size() ? gain_[apart] : 0;
    keys_[id] = std::max(old, t) + gain;
    return keys_[id] != old;
  }
  /// At least 1: a key of 0 means never visited.
  std::uint32_t now() const { return static_cast<std::uint32_t>(clock_ >> 32) + 1; }

  /// Moves time zero forward, so that keys and their buckets stay few in a run without an end.
  void rebase() {
    const std::uint32_t by = kRebase / 2;
    clock_ -= std::uint64_t{by} << 32;
    std::vector<PageId> in;
    for (PageId id = queue_.min(); id != kNoPage; id = queue_.up(id)) in.push_back(id);
    for (const PageId id : in) queue_.remove(id);
    for (std::uint32_t& key : keys_) key = key > by ? key - by : std::min(key, 1U);
    for (auto it = in.rbegin(); it != in.rend(); ++it) queue_.insert(*it, keys_[*it]);
  }

  double half_life_;
  KeyQueue queue_;
  std::vector<std::uint32_t> keys_;
  std::array<std::uint32_t, 10 * kUnits> gain_{};  ///< log2(1 + 2^-d)
  std::uint64_t clock_ = 0;                        ///< time in units, 32 bits of fraction
  std::uint64_t tick_ = 1;                         ///< what a visit adds
  PageId counted_ = kNoPage;
};

}  // namespace lehr::placement
