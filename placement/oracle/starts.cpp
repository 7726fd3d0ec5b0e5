// SPDX-License-Identifier: Apache-2.0
#include "placement/oracle/starts.hpp"

#include <algorithm>
#include <queue>

namespace lehr::placement {

namespace {

struct Interval {
  Tick length;
  std::uint32_t visit;
  PageId page;
};

/// Intervals that can be kept: all but those of pages not born in HBM to their first visit.
std::vector<Interval> intervals(const Instance& instance, const VisitChains& chains) {
  std::vector<Interval> out;
  out.reserve(chains.tick.size());
  for (PageId p = 0; p < instance.pages(); ++p) {
    Tick from = instance.birth[p];
    for (std::uint32_t i = chains.begin_of(p); i < chains.end[p]; ++i) {
      const bool here = i > chains.begin_of(p) || instance.born_in_hbm[p] != 0;
      if (here) out.push_back({chains.tick[i] + 1 - from, i, p});
      from = chains.tick[i] + 1;
    }
  }
  return out;
}

}  // namespace

Schedule greedy_density(const Instance& instance, const VisitChains& chains) {
  Schedule schedule(chains.tick.size(), kReadInPlace);
  std::vector<int> room(instance.ticks());
  for (Tick t = 0; t < instance.ticks(); ++t) {
    room[t] = static_cast<int>(instance.capacity - instance.pinned[t]);
  }
  std::vector<Interval> order = intervals(instance, chains);
  // A page read in the tick of its birth has its slot in any case: first, as it must be.
  const auto rank = [&](const Interval& interval) {
    const bool forced = interval.length == 1 && interval.visit == chains.begin_of(interval.page);
    return forced ? 0 : interval.length;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Interval& a, const Interval& b) { return rank(a) < rank(b); });
  for (const Interval& interval : order) {
    const std::uint32_t i = interval.visit;
    const Tick v = chains.tick[i];
    const bool first = i == chains.begin_of(interval.page);
    const bool next_kept = i + 1 < chains.end[interval.page] && schedule[i + 1] == kKept;
    // The visit before installs if it is read in place; this one holds its slot already if it did
    // so.
    Tick from = v + 1 - interval.length;
    if (!first && schedule[i - 1] == kReadInPlace) --from;
    const Tick to = next_kept ? v : v + 1;
    if (std::any_of(room.begin() + from, room.begin() + to, [](int r) { return r <= 0; })) continue;
    for (Tick t = from; t < to; ++t) --room[t];
    schedule[i] = kKept;
  }
  return schedule;
}

namespace {

/// The state of fewest_misses() as it walks through time.
class Sweep {
 public:
  Sweep(const Instance& instance, const VisitChains& chains, Tick block)
      : instance_(instance),
        chains_(chains),
        block_(block),
        schedule_(chains.tick.size(), kReadInPlace),
        next_(instance.pages()),
        born_(instance.ticks()) {
    for (PageId p = 0; p < instance.pages(); ++p) {
      next_[p] = chains.begin_of(p);
      const bool read = next_[p] < chains.end[p];
      if (instance.born_in_hbm[p] != 0 && read) born_[instance.birth[p]].push_back(p);
    }
  }

  Schedule run() {
    for (Tick t = 0; t < instance_.ticks(); ++t) {
      const std::uint32_t capacity = instance_.capacity - instance_.pinned[t];
      births(t);
      if (t % block_ == 0) fill_block(t, capacity);
      trim(capacity, t);
      visits(t, capacity);
    }
    return std::move(schedule_);
  }

 private:
  void keep(std::uint32_t visit) {
    schedule_[visit] = kKept;
    kept_.emplace(chains_.tick[visit], visit);
    ++held_;
  }

  void give_up_kept(std::uint32_t capacity, Tick from) {
    while (held_ > capacity && !kept_.empty() && kept_.top().first >= from) {
      schedule_[kept_.top().second] = kReadInPlace;
      kept_.pop();
      --held_;
    }
  }

  /// Gives up intervals that end at `from` or later, the last to end first, until the others fit:
  /// those that reach past the block, then the block's promotions, then the rest.
  void trim(std::uint32_t capacity, Tick from) {
    give_up_kept(capacity, std::max(from, block_end_));
    while (held_ > capacity && !promoted_.empty() && chains_.tick[promoted_.back()] >= from) {
      schedule_[promoted_.back()] = kReadInPlace;
      promoted_.pop_back();
      --held_;
    }
    give_up_kept(capacity, from);
  }

  /// Pages read in the tick of their birth take their slots whatever is held.
  void births(Tick t) {
    for (const PageId p : born_[t]) {
      if (chains_.tick[next_[p]] == t) {
        schedule_[next_[p]] = kKept;
        ++held_;
      } else {
        keep(next_[p]);
      }
    }
  }

  /// Promotes at t what the block's other ticks read and HBM does not hold.
  void fill_block(Tick t, std::uint32_t capacity) {
    promoted_.clear();
    block_end_ = std::min(t + block_, instance_.ticks());
    for (Tick later = t + 1; later < block_end_; ++later) {
      for (const PageId p : instance_.visits_at(later)) {
        const std::uint32_t visit = next_[p];
        const bool next = visit < chains_.end[p] && chains_.tick[visit] == later;
        if (!next || schedule_[visit] != kReadInPlace || instance_.birth[p] > t) continue;
        schedule_[visit] = t;
        promoted_.push_back(visit);
        ++held_;
      }
    }
    trim(capacity, t + 1);
  }

  void visits(Tick t, std::uint32_t capacity) {
    std::uint32_t ended = 0;
    after_.clear();
    for (const PageId p : instance_.visits_at(t)) {
      const bool hit = schedule_[next_[p]] != kReadInPlace;
      ended += hit ? 1 : 0;
      if (++next_[p] == chains_.end[p]) continue;
      if (hit) {
        after_.push_back(next_[p]);  // holds its slot through this tick as the interval that ends
      } else {
        keep(next_[p]);
      }
    }
    trim(capacity, t + 1);  // what is being read stays
    held_ -= ended;
    for (const std::uint32_t visit : after_) keep(visit);
  }

  const Instance& instance_;
  const VisitChains& chains_;
  const Tick block_;
  Schedule schedule_;
  std::vector<std::uint32_t> next_;  ///< by page
  std::vector<std::vector<PageId>> born_;
  std::priority_queue<std::pair<Tick, std::uint32_t>>
      kept_;  ///< (end, visit), the last to end on top
  std::vector<std::uint32_t> promoted_, after_;
  std::uint32_t held_ = 0;
  Tick block_end_ = 0;
};

}  // namespace

Schedule fewest_misses(const Instance& instance, const VisitChains& chains, Tick block) {
  return Sweep(instance, chains, std::max<Tick>(1, block)).run();
}

}  // namespace lehr::placement
