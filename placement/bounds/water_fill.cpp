// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/water_fill.hpp"

#include <algorithm>
#include <limits>

namespace lehr::placement::bounds {

namespace {

/// Sums round; their relative error is far below this.
constexpr double kRoundDown = 1 - 1e-10;

struct Balance {
  Seconds time;   ///< the least time of a tick, over all numbers of crossings
  double hidden;  ///< the most crossings that keep it
};

/// Of max(floor, hbm(visits - n), link(n)) over n >= 0: pages read in place relieve HBM until the
/// link is the slower of the two.
Balance balance(const TickCost& cost, double visits) {
  const double meet = (cost.hbm.at(visits) - cost.link.base) / (cost.hbm.slope + cost.link.slope);
  const double n = std::clamp(meet, 0.0, visits);
  const Seconds time = std::max({cost.floor, cost.hbm.at(visits - n), cost.link.at(n)});
  return {time, std::max(0.0, (time - cost.link.base) / cost.link.slope)};
}

/// Sums over ticks, and for a window start that walks backwards the number of pages first read in
/// each tick from there on.
class Windows {
 public:
  Windows(const Instance& instance, std::span<const TickCost> costs)
      : instance_(instance),
        time_{0},
        hidden_{0},
        next_(instance.pages(), kNever),
        first_read_(instance.ticks(), 0),
        born_(instance.ticks()) {
    for (Tick t = 0; t < instance.ticks(); ++t) {
      const Balance b = balance(costs[t], static_cast<double>(instance.visits_at(t).size()));
      time_.push_back(time_.back() + costs[t].control + b.time);
      hidden_.push_back(hidden_.back() + b.hidden);
      slope_.push_back(costs[t].link.slope);
    }
    for (PageId p = 0; p < instance.pages(); ++p) {
      if (instance.born_in_hbm[p] != 0 && instance.birth[p] < instance.ticks()) {
        born_[instance.birth[p]].push_back(p);
      }
    }
  }

  /// Windows start at `first` from now on; one tick earlier than before.
  void step_back(Tick first) {
    for (const PageId p : instance_.visits_at(first)) {
      ++first_read_[first];
      if (next_[p] != kNever) --first_read_[next_[p]];
      next_[p] = first;
    }
    // Born here: the first read needs no crossing.
    for (const PageId p : born_[first]) {
      if (next_[p] != kNever) --first_read_[next_[p]];
    }
  }

  /// Calls fn(end, time, slope) for the windows [first, end), end <= last, of the present start.
  template <class Fn>
  void each(Tick first, Tick last, Fn fn) const {
    // Before the first tick nothing is in HBM; what a replay starts with is born there.
    const double held = first == 0 ? 0.0 : instance_.capacity - instance_.pinned[first];
    double excess = -held;
    double slope = std::numeric_limits<double>::infinity();
    for (Tick t = first; t < last; ++t) {
      excess += first_read_[t] - (hidden_[t + 1] - hidden_[t]);
      slope = std::min(slope, slope_[t]);
      fn(t + 1, time_[t + 1] - time_[first] + std::max(0.0, excess) * slope,
         excess > 0 ? slope : 0.0);
    }
  }

 private:
  const Instance& instance_;
  std::vector<Seconds> time_;
  std::vector<double> hidden_;
  std::vector<Seconds> slope_;
  std::vector<Tick> next_;
  std::vector<std::int32_t> first_read_;
  std::vector<std::vector<PageId>> born_;
};

Tick after_warmup(const Instance& instance, std::uint32_t warmup_steps) {
  const std::uint64_t first = std::uint64_t{warmup_steps} * instance.layers;
  return static_cast<Tick>(std::min<std::uint64_t>(first, instance.ticks()));
}

}  // namespace

BoundValue water_fill(const Instance& instance, std::span<const TickCost> costs,
                      std::uint32_t warmup_steps) {
  BoundValue out{"LB0", 0, 0};
  Windows windows(instance, costs);
  const Tick ticks = instance.ticks();
  for (Tick first = ticks; first-- > 0;) {
    windows.step_back(first);
    if (first % instance.layers != 0) continue;
    const Tick end = std::min(ticks, first + instance.layers);
    Seconds time = 0;
    windows.each(first, end, [&](Tick, Seconds window, Seconds) { time = window; });
    out.total += time;
    if (first >= after_warmup(instance, warmup_steps)) out.without_warmup += time;
  }
  out.total *= kRoundDown;
  out.without_warmup *= kRoundDown;
  return out;
}

BoundValue best_windows(const Instance& instance, std::span<const TickCost> costs,
                        std::uint32_t warmup_steps, std::vector<Window>* windows) {
  // A window's length is limited only to keep the work of very long replays linear.
  constexpr std::uint64_t kPairs = 200'000'000;
  const Tick ticks = instance.ticks();
  const auto longest = static_cast<Tick>(kPairs / std::max<Tick>(1, ticks) + instance.layers);
  Windows all(instance, costs);
  std::vector<Seconds> value(ticks + std::size_t{1}, 0);
  std::vector<Window> cut(ticks);
  for (Tick first = ticks; first-- > 0;) {
    all.step_back(first);
    const Tick last = ticks - first > longest ? first + longest : ticks;
    all.each(first, last, [&](Tick end, Seconds time, Seconds slope) {
      if (time + value[end] > value[first]) {
        value[first] = time + value[end];
        cut[first] = {first, end, slope};
      }
    });
    if (cut[first].end == 0) cut[first] = {first, first + 1, 0};  // ticks that take no time
  }
  if (windows != nullptr) {
    windows->clear();
    for (Tick t = 0; t < ticks; t = cut[t].end) windows->push_back(cut[t]);
  }
  return {"LBw", value[0] * kRoundDown, value[after_warmup(instance, warmup_steps)] * kRoundDown};
}

Weights window_weights(const Instance& instance, std::span<const TickCost> costs,
                       std::span<const Window> windows) {
  Weights w;
  w.share.resize(costs.size());
  w.slot.assign(costs.size(), 0.0);
  for (const Window& window : windows) {
    // What a replay starts with has its slots for nothing.
    w.slot[window.first] = window.first == 0 ? 0.0 : window.slope;
    for (Tick t = window.first; t < window.end; ++t) {
      const TickCost& c = costs[t];
      const auto visits = static_cast<double>(instance.visits_at(t).size());
      const Seconds time = balance(c, visits).time;
      const double link = c.hbm.slope / (c.hbm.slope + c.link.slope);
      if (window.slope > 0) {
        w.share[t] = {0, 1, 0, 0};
      } else if (time <= c.floor) {
        w.share[t] = {0, 0, 1, 0};
      } else if (c.link.at(visits) <= time) {
        w.share[t] = {1, 0, 0, 0};  // weights and the like: the link could carry all that is read
      } else {
        w.share[t] = {1 - link, link, 0, 0};  // at the balance of both
      }
    }
  }
  return w;
}

}  // namespace lehr::placement::bounds
