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
  // Length one is a read in the tick of birth, which has its slot in any case: first, as it must
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

Schedule fewest_misses(const Instance& instance, const VisitChains& chains) {
  Schedule schedule(chains.tick.size(), kReadInPlace);
  std::vector<std::uint32_t> next(instance.pages());
  std::vector<std::vector<PageId>> born(instance.ticks());
  for (PageId p = 0; p < instance.pages(); ++p) {
    next[p] = chains.begin_of(p);
    if (instance.born_in_hbm[p] != 0 && next[p] < chains.end[p])
      born[instance.birth[p]].push_back(p);
  }
  std::priority_queue<std::pair<Tick, std::uint32_t>> kept;  // (end, visit), the last to end on top
  std::uint32_t held = 0;
  const auto keep = [&](std::uint32_t visit) {
    schedule[visit] = kKept;
    kept.emplace(chains.tick[visit], visit);
    ++held;
  };
  // Gives up intervals that end at `from` or later until the others fit.
  const auto trim = [&](std::uint32_t capacity, Tick from) {
    while (held > capacity && !kept.empty() && kept.top().first >= from) {
      schedule[kept.top().second] = kReadInPlace;
      kept.pop();
      --held;
    }
  };
  std::vector<std::uint32_t> after;
  for (Tick t = 0; t < instance.ticks(); ++t) {
    // Pages read in the tick of their birth take their slots whatever is held.
    std::uint32_t ended = 0;
    for (const PageId p : born[t]) {
      if (chains.tick[next[p]] == t) {
        schedule[next[p]] = kKept;
        ++held;
      } else {
        keep(next[p]);
      }
    }
    const std::uint32_t capacity = instance.capacity - instance.pinned[t];
    trim(capacity, t);
    after.clear();
    for (const PageId p : instance.visits_at(t)) {
      const std::uint32_t visit = next[p]++;
      const bool hit = schedule[visit] == kKept;
      ended += hit ? 1 : 0;
      if (next[p] == chains.end[p]) continue;
      if (hit) {
        after.push_back(next[p]);  // holds its slot through this tick as the interval that ends
      } else {
        keep(next[p]);
      }
    }
    trim(capacity, t + 1);  // what is being read stays
    held -= ended;
    for (const std::uint32_t visit : after) keep(visit);
  }
  return schedule;
}

}  // namespace lehr::placement
