// SPDX-License-Identifier: Apache-2.0
#include "placement/anneal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kernels/base/rng.hpp"

namespace lehr::placement {

namespace {

constexpr std::size_t kThresholds = 4096;
constexpr std::size_t kAhead = 16;  ///< proposals drawn ahead, so that their entries are on the way

}  // namespace

MissCost::MissCost(const Platform& platform, Bytes page_bytes, Seconds beside) {
  const LinkId up = platform.link(platform.home, kHbm);
  constexpr std::size_t kCounts = 192;
  std::array<double, kCounts> time{};
  for (std::uint32_t n = 0; n < kCounts; ++n) {
    time[n] = std::max(beside, link_time(platform.links[up], {page_bytes * n, n}));
  }
  slope_ = time[kCounts - 1] - time[kCounts - 2];
  points_.resize(static_cast<std::size_t>(kMost * kPerMiss) + 2);
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const double mean = static_cast<double>(i) / kPerMiss;
    double probability = std::exp(-mean);
    double sum = 0;
    double rest = 1;
    for (std::size_t n = 0; n < kCounts; ++n) {
      sum += probability * time[n];
      rest -= probability;
      probability *= mean / static_cast<double>(n + 1);
    }
    sum += std::max(rest, 0.0) * time.back();
    // Whole femtoseconds: the last bit of exp() differs between machines, the plan must not.
    points_[i] = std::round(sum * 1e15) * 1e-15;
  }
}

Status Annealer::load(const AnnealProblem& problem) {
  if (!(problem.promotion >= 0) || !std::isfinite(problem.promotion)) {
    return invalid("annealing: the price of a promotion is not a time");
  }
  if (problem.misses.size() != problem.cost.size()) {
    return invalid("annealing: " + std::to_string(problem.misses.size()) +
                   " layers have misses and " + std::to_string(problem.cost.size()) + " a cost");
  }
  for (const double m : problem.misses) {
    if (!(m >= 0) || !std::isfinite(m))
      return invalid("annealing: expected misses are not a number");
  }
  inside_.clear();
  outside_.clear();
  misses_.assign(problem.misses.begin(), problem.misses.end());
  for (std::uint32_t i = 0; i < problem.pages.size(); ++i) {
    const MarginalPage& p = problem.pages[i];
    if (!(p.odds >= 0 && p.odds <= 1)) {
      return invalid("annealing: the odds of page " + std::to_string(p.page) +
                     " are not in [0, 1]");
    }
    if (p.layer >= problem.cost.size()) {
      return invalid("annealing: page " + std::to_string(p.page) + " is of layer " +
                     std::to_string(p.layer) + ", which has no cost");
    }
    if (!p.in_hbm) misses_[p.layer] += static_cast<double>(p.odds);
    (p.in_hbm ? inside_ : outside_)
        .push_back({p.odds, p.layer, static_cast<std::uint8_t>(p.in_hbm),
                    static_cast<std::uint8_t>(p.in_hbm || !p.crosses), i});
  }
  cost_.resize(misses_.size());
  for (std::size_t l = 0; l < misses_.size(); ++l) cost_[l] = problem.cost[l].at(misses_[l]);
  return {};
}

/// By how much the predicted time changes if one leaves and the other comes.
double Annealer::change(const AnnealProblem& problem, const Entry& leaves,
                        const Entry& comes) const {
  // A page that was in HBM and comes back has cost nothing; one that was brought in is not brought
  // now.
  const double moves =
      problem.promotion * (static_cast<double>(leaves.free) - static_cast<double>(comes.free));
  if (leaves.layer == comes.layer) {
    const double mean =
        misses_[leaves.layer] + static_cast<double>(leaves.odds) - static_cast<double>(comes.odds);
    return problem.cost[leaves.layer].at(mean) - cost_[leaves.layer] + moves;
  }
  const double more =
      problem.cost[leaves.layer].at(misses_[leaves.layer] + static_cast<double>(leaves.odds));
  const double less =
      problem.cost[comes.layer].at(misses_[comes.layer] - static_cast<double>(comes.odds));
  return (more - cost_[leaves.layer]) + (less - cost_[comes.layer]) + moves;
}

void Annealer::commit(const AnnealProblem& problem, Swap swap) {
  Entry& leaves = inside_[swap.inside];
  Entry& comes = outside_[swap.outside];
  misses_[leaves.layer] += static_cast<double>(leaves.odds);
  misses_[comes.layer] -= static_cast<double>(comes.odds);
  cost_[leaves.layer] = problem.cost[leaves.layer].at(misses_[leaves.layer]);
  cost_[comes.layer] = problem.cost[comes.layer].at(misses_[comes.layer]);
  std::swap(leaves, comes);
}

void Annealer::restore_best() {
  for (auto it = since_best_.rbegin(); it != since_best_.rend(); ++it) {
    std::swap(inside_[it->inside], outside_[it->outside]);
  }
  since_best_.clear();
}

/// Such that four of five worsening moves pass at first.
double Annealer::first_temperature(const AnnealProblem& problem, std::uint64_t seed) const {
  Rng rng(seed ^ 0x5EED);
  double worse = 0;
  std::uint32_t count = 0;
  for (int i = 0; i < 256; ++i) {
    const double d = change(problem, inside_[rng.below(static_cast<std::uint32_t>(inside_.size()))],
                            outside_[rng.below(static_cast<std::uint32_t>(outside_.size()))]);
    if (d <= 0) continue;
    worse += d;
    ++count;
  }
  constexpr double kMinusLogAccepted = 0.2231435513;  // -ln 0.8
  return count == 0 ? 0 : worse / count / kMinusLogAccepted;
}

/// Proposals, a few drawn ahead so that their entries are on the way.
class Annealer::Draws {
 public:
  Draws(const std::vector<Entry>& inside, const std::vector<Entry>& outside, Rng& rng)
      : inside_(inside), outside_(outside), rng_(rng) {
    for (Swap& s : ahead_) draw(s);
  }
  Swap next(std::uint64_t n) {
    Swap& place = ahead_[n % kAhead];
    const Swap out = place;
    draw(place);
    return out;
  }

 private:
  void draw(Swap& s) {
    const std::uint64_t bits = rng_.next();
    s.inside = static_cast<std::uint32_t>(((bits >> 32) * inside_.size()) >> 32);
    s.outside = static_cast<std::uint32_t>(((bits & 0xFFFFFFFFU) * outside_.size()) >> 32);
    __builtin_prefetch(&inside_[s.inside]);
    __builtin_prefetch(&outside_[s.outside]);
  }

  const std::vector<Entry>& inside_;
  const std::vector<Entry>& outside_;
  Rng& rng_;
  std::array<Swap, kAhead> ahead_{};
};

inline bool Annealer::passes(double change, double temperature, Rng& rng) const {
  if (change <= 0) return true;
  if (change >= temperature * 9) return false;
  return change < temperature * static_cast<double>(thresholds_[rng.next() % kThresholds]);
}

namespace {

Status check(const AnnealSchedule& schedule) {
  const bool sound = schedule.cooling > 0 && schedule.cooling <= 1 &&
                     schedule.start_temperature >= 0 && schedule.per_temperature > 0 &&
                     schedule.least_gain >= 0;
  if (!sound) return invalid("annealing: a schedule out of range");
  return {};
}

}  // namespace

void Annealer::propose(const AnnealProblem& problem, const AnnealSchedule& schedule, Walk& walk,
                       AnnealResult& result) {
  Rng rng(schedule.seed);
  Draws draws(inside_, outside_, rng);
  while (result.proposals < schedule.proposals) {
    const Swap swap = draws.next(result.proposals++);
    const double d = change(problem, inside_[swap.inside], outside_[swap.outside]);
    if (passes(d, walk.temperature, rng)) {
      commit(problem, swap);
      walk.energy += d;
      ++result.accepted;
      since_best_.push_back(swap);
      if (walk.energy < walk.best) {
        walk.best = walk.energy;
        since_best_.clear();
      }
    }
    if (result.proposals == walk.next_cooling) {
      walk.temperature *= schedule.cooling;
      walk.next_cooling += schedule.per_temperature;
    }
    if (result.proposals == walk.next_check) {
      if (walk.best_at_check - walk.best < schedule.least_gain * walk.best_at_check) return;
      walk.best_at_check = walk.best;
      walk.next_check += schedule.patience;
    }
  }
}

/// The best state, if it is better than the start by a sum made afresh: sums of differences drift.
void Annealer::conclude(const AnnealProblem& problem, AnnealResult& result) {
  restore_best();
  misses_.assign(problem.misses.begin(), problem.misses.end());
  for (const Entry& e : outside_) misses_[e.layer] += static_cast<double>(e.odds);
  double after = 0;
  for (std::size_t l = 0; l < misses_.size(); ++l) after += problem.cost[l].at(misses_[l]);
  for (const Entry& e : inside_) {
    if (e.free == 0) after += problem.promotion;
  }
  if (after >= result.before) return;
  result.after = after;
  for (const Entry& e : inside_) {
    if (e.in_hbm == 0) result.in.push_back(e.index);
  }
  for (const Entry& e : outside_) {
    if (e.in_hbm != 0) result.out.push_back(e.index);
  }
  std::sort(result.in.begin(), result.in.end());
  std::sort(result.out.begin(), result.out.end());
}

Status Annealer::run(const AnnealProblem& problem, const AnnealSchedule& schedule,
                     AnnealResult& result) {
  result.in.clear();
  result.out.clear();
  result.proposals = 0;
  result.accepted = 0;
  LEHR_TRY(check(schedule));
  LEHR_TRY(load(problem));
  result.before = 0;
  for (const double c : cost_) result.before += c;
  result.after = result.before;
  if (inside_.empty() || outside_.empty()) return {};
  if (thresholds_.empty()) {
    for (std::size_t i = 0; i < kThresholds; ++i) {
      thresholds_.push_back(
          static_cast<float>(-std::log((static_cast<double>(i) + 0.5) / kThresholds)));
    }
  }
  since_best_.clear();
  const double temperature = schedule.start_temperature > 0
                                 ? schedule.start_temperature
                                 : first_temperature(problem, schedule.seed);
  Walk walk{result.before, result.before,     temperature,
            result.before, schedule.patience, schedule.per_temperature};
  propose(problem, schedule, walk, result);
  conclude(problem, result);
  return {};
}

}  // namespace lehr::placement
