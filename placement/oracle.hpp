// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/instance.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

/// How a page comes to one of its visits: kReadInPlace, kKept since the visit before (or birth), or
/// the tick of its promotion, after the visit before and before this one.
using Way = Tick;
inline constexpr Way kReadInPlace = kNever;
inline constexpr Way kKept = kNever - 1;

/// A whole replay decided in advance, in the order of visit_chains(). A page that was read in place
/// and is kept for its next visit is installed by that reading.
using Schedule = std::vector<Way>;

struct ScheduleTime {
  Seconds total = 0;
  Seconds without_warmup = 0;
};

/// The model's time for a schedule, or why it is none: over capacity, kept without a copy, a
/// promotion outside its interval, a page that is read in the tick of its birth and not kept.
Result<ScheduleTime> schedule_time(const Instance& instance, const VisitChains& chains,
                                   const Schedule& schedule, std::uint32_t warmup_steps = 16);

struct OracleOptions {
  std::uint64_t seed = 1;
  std::uint32_t seeds = 1;  ///< runs, with seeds seed, seed + 1, ...; the best is returned
  std::uint32_t warmup_steps = 16;
  std::uint32_t sweeps = 6;  ///< over all pages; each about 0.5 s for a million visits
};

/// A feasible plan made with full knowledge by annealing keep-bits and promotion times: good, not
/// optimal, and never a bound.
struct OraclePlan {
  Schedule schedule;
  ScheduleTime predicted;
  Seconds greedy = 0;            ///< of greedy density, the start if fewest misses is no better
  std::vector<Seconds> by_seed;  ///< totals, for the spread
};
Result<OraclePlan> oracle_plan(const Instance& instance, const OracleOptions& options = {});

/// Carries out a schedule through Policy::decide. Pages are those of the instance in the order of
/// add_pages. Not registered: it knows one replay only. Keeps references to all three.
std::unique_ptr<Policy> planned_policy(const Instance& instance, const VisitChains& chains,
                                       const Schedule& schedule);

}  // namespace lehr::placement
