// SPDX-License-Identifier: Apache-2.0
#include "placement/oracle.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "placement/bounds/water_fill.hpp"
#include "placement/oracle/router.hpp"
#include "placement/oracle/starts.hpp"

namespace lehr::placement {

namespace {

Error no_schedule(const char* what, PageId page, Tick t) {
  return invalid(std::string("schedule: ") + what + ", page " + std::to_string(page) + ", tick " +
                 std::to_string(t));
}

Tick after_warmup(const Instance& instance, std::uint32_t steps) {
  return static_cast<Tick>(
      std::min<std::uint64_t>(std::uint64_t{steps} * instance.layers, instance.ticks()));
}

/// What a schedule does in each tick.
struct Counts {
  std::vector<std::uint32_t> hbm, crossings;
  std::vector<std::int64_t> held;  ///< differences

  void hold(Tick from, Tick to) {
    ++held[from];
    --held[to];
  }
  void read_in_place(Tick v, bool installs) {
    ++crossings[v];
    if (!installs) return;
    ++hbm[v];
    hold(v, v + 1);
  }
  void promote(Tick at) {
    ++crossings[at];
    ++hbm[at];
  }
};

/// A page between two visits.
struct Interval {
  Tick from;  ///< the tick after the visit before, or of its birth
  Tick visit;
  bool first;   ///< since its birth
  bool in_hbm;  ///< in `from`
};

/// Why a page cannot come this way, or null.
const char* impossible(const Interval& at, Way way) {
  if (way == kKept) return at.in_hbm ? nullptr : "kept, but in HBM it was not";
  const bool born = at.first && at.in_hbm;
  if (born && at.from == at.visit) return "read in the tick of its birth, but not kept";
  if (way == kReadInPlace) return nullptr;
  // In the tick of its birth a page born in HBM is there already.
  const Tick earliest = born ? at.from + 1 : at.from;
  return way < earliest || way >= at.visit ? "promoted outside its interval" : nullptr;
}

Status count_page(const Instance& instance, const VisitChains& chains, const Schedule& schedule,
                  PageId p, Counts& counts) {
  const std::uint32_t end = chains.end[p];
  Interval at{instance.birth[p], 0, true, instance.born_in_hbm[p] != 0};
  for (std::uint32_t i = chains.begin_of(p); i < end; ++i) {
    at.visit = chains.tick[i];
    const Way way = schedule[i];
    const bool kept_on = i + 1 < end && schedule[i + 1] == kKept;
    if (const char* why = impossible(at, way)) return no_schedule(why, p, at.visit);
    if (way == kReadInPlace) {
      counts.read_in_place(at.visit, kept_on);
    } else {
      if (way != kKept) counts.promote(way);
      ++counts.hbm[at.visit];
      counts.hold(way == kKept ? at.from : way, at.visit + 1);
    }
    at = {at.visit + 1, 0, false, kept_on || way != kReadInPlace};
  }
  return {};
}

}  // namespace

Result<ScheduleTime> schedule_time(const Instance& instance, const VisitChains& chains,
                                   const Schedule& schedule, std::uint32_t warmup_steps) {
  if (schedule.size() != chains.tick.size()) return invalid("schedule: not one way for each visit");
  const Tick ticks = instance.ticks();
  Counts counts{std::vector<std::uint32_t>(ticks), std::vector<std::uint32_t>(ticks),
                std::vector<std::int64_t>(ticks + std::size_t{1})};
  for (PageId p = 0; p < instance.pages(); ++p) {
    LEHR_TRY(count_page(instance, chains, schedule, p, counts));
  }
  ScheduleTime out;
  std::int64_t held = 0;
  for (Tick t = 0; t < ticks; ++t) {
    held += counts.held[t];
    if (held + instance.pinned[t] > instance.capacity) {
      return invalid("schedule: " + std::to_string(held) + " pages and " +
                     std::to_string(instance.pinned[t]) + " tails for " +
                     std::to_string(instance.capacity) + " slots, tick " + std::to_string(t));
    }
    const LayerLoad load = instance.load(t, counts.hbm[t], counts.crossings[t]);
    const Seconds time = layer_time(*instance.platform, load).total();
    out.total += time;
    if (t >= after_warmup(instance, warmup_steps)) out.without_warmup += time;
  }
  return out;
}

namespace {

/// Annealing, page by page: each page in turn draws its keep-bits and promotion times anew, the
/// more freely the higher the temperature. The best state after a sweep is kept.
class Annealing {
 public:
  Annealing(const Instance& instance, const VisitChains& chains, const Schedule& start)
      : instance_(instance),
        router_(instance, chains, start),
        best_(start),
        best_time_(router_.ledger().total(0)),
        order_(instance.pages()) {
    std::iota(order_.begin(), order_.end(), PageId{0});
    std::vector<bounds::Window> windows;
    const std::vector<bounds::TickCost> costs = bounds::tick_costs(instance);
    bounds::best_windows(instance, costs, 0, &windows);
    price_ = bounds::window_weights(instance, costs, windows).slot;
    for (const bounds::TickCost& c : costs) crossing_ = std::max(crossing_, c.link.slope);
  }

  /// Temperatures and prices fall to zero over the first two thirds of the sweeps.
  void run(std::uint32_t sweeps, std::uint64_t seed) {
    constexpr double kHot = 0.05;  // of a crossing's time
    constexpr double kDear = 0.3;  // of what the bound takes for a slot
    constexpr double kCooling = 0.6;
    Rng rng(seed);
    double heat = 1;
    merge();
    for (std::uint32_t s = 0; s < sweeps; ++s) {
      if (3 * s >= 2 * sweeps) heat = 0;
      for (std::size_t i = order_.size(); i > 1; --i) {
        std::swap(order_[i - 1], order_[rng.below(static_cast<std::uint32_t>(i))]);
      }
      std::vector<Seconds> slot_price = price_;
      for (Seconds& x : slot_price) x *= heat > 0 ? kDear : 0;
      const Router::Search search{slot_price, kHot * heat * crossing_, &rng};
      for (const PageId p : order_) router_.reroute(p, search);
      merge();
      heat *= kCooling;
    }
  }

  const Schedule& best() const { return best_; }

 private:
  void merge() {
    router_.merge_crossings(2 * instance_.layers);
    const Seconds time = router_.ledger().total(0);
    if (time >= best_time_) return;
    best_time_ = time;
    best_ = router_.schedule();
  }

  const Instance& instance_;
  Router router_;
  Schedule best_;
  Seconds best_time_;
  std::vector<PageId> order_;
  std::vector<Seconds> price_;
  Seconds crossing_ = 0;
};

}  // namespace

Result<OraclePlan> oracle_plan(const Instance& instance, const OracleOptions& options) {
  LEHR_TRY(instance.validate());
  const VisitChains chains = visit_chains(instance);
  OraclePlan out;
  out.schedule = greedy_density(instance, chains);
  LEHR_ASSIGN(out.predicted, schedule_time(instance, chains, out.schedule, options.warmup_steps));
  out.greedy = out.predicted.total;
  for (Tick block = 1; block <= instance.layers; block += (block + 1) / 2) {
    Schedule other = fewest_misses(instance, chains, block);
    LEHR_ASSIGN(const ScheduleTime time,
                schedule_time(instance, chains, other, options.warmup_steps));
    if (time.total >= out.predicted.total) continue;
    out.schedule = std::move(other);
    out.predicted = time;
  }
  const Schedule start = out.schedule;
  for (std::uint32_t k = 0; k < options.seeds; ++k) {
    Annealing annealing(instance, chains, start);
    annealing.run(options.sweeps, options.seed + k);
    LEHR_ASSIGN(const ScheduleTime time,
                schedule_time(instance, chains, annealing.best(), options.warmup_steps));
    out.by_seed.push_back(time.total);
    if (time.total < out.predicted.total) {
      out.predicted = time;
      out.schedule = annealing.best();
    }
  }
  return out;
}

}  // namespace lehr::placement
