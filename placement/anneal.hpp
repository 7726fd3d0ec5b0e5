// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/rng.hpp"
#include "kernels/base/units.hpp"
#include "placement/model.hpp"

namespace lehr::placement {

/// Expected time of a layer as a function of how many misses it is expected to have: the mean of
/// max(beside, link(N)) over a Poisson-distributed N. Neither convex nor concave: the first bytes
/// are free as far as `beside` hides them, the first page that is not pays the link's start, and a
/// burst makes further ones cheap.
class MissCost {
 public:
  MissCost(const Platform& platform, Bytes page_bytes, Seconds beside);

  /// Linear between the points of a grid, and beyond its end.
  Seconds at(double mean) const {
    const double x = mean < kMost ? (mean > 0 ? mean : 0) * kPerMiss : kMost * kPerMiss - 1e-6;
    const auto i = static_cast<std::size_t>(x);
    const double low = points_[i];
    const double inside = low + (x - static_cast<double>(i)) * (points_[i + 1] - low);
    return mean < kMost ? inside : inside + (mean - kMost) * slope_;
  }
  /// What one more expected miss costs.
  Seconds price(double mean) const { return at(mean + 1) - at(mean); }

 private:
  static constexpr double kMost = 96;
  static constexpr double kPerMiss = 4;

  std::vector<double> points_;
  double slope_ = 0;
};

/// A page near the border between staying and leaving.
struct MarginalPage {
  float odds = 0;  ///< expected reads in the coming step, in [0, 1]
  std::uint16_t layer = 0;
  bool in_hbm = false;  ///< where the warm start puts it
  PageId page = kNoPage;
  bool crosses = true;  ///< coming in takes a crossing; false: it is in HBM, about to leave
};

/// Which of the marginal pages HBM should hold through the coming step.
struct AnnealProblem {
  std::span<const MarginalPage> pages;
  std::span<const MissCost> cost;  ///< by layer
  std::span<const double> misses;  ///< by layer: expected of pages that are not marginal
  Seconds promotion = 0;  ///< of link time that a page which has to cross takes from others
};

struct AnnealSchedule {
  std::uint64_t proposals = 100'000;  ///< the time box; the owner converts time to proposals
  double start_temperature =
      0;  ///< seconds; 0: such that about 0.8 of the first worsening moves pass
  double cooling = 0.9;
  std::uint64_t per_temperature = 1000;
  double least_gain = 0.001;  ///< stop when a round of `patience` proposals gains a smaller share
  std::uint64_t patience = 20'000;
  std::uint64_t seed = 0;
};

struct AnnealResult {
  Seconds before = 0;              ///< predicted for the warm start
  Seconds after = 0;               ///< for the best state seen; never above `before`
  std::vector<std::uint32_t> in;   ///< indices of pages to bring in
  std::vector<std::uint32_t> out;  ///< indices of pages to give up; as many
  std::uint64_t proposals = 0;
  std::uint64_t accepted = 0;
};

/// Simulated annealing by swaps of a page in HBM with one outside. Keeps the number of pages in
/// HBM; returns the best state seen; the same problem, schedule and seed give the same result.
/// About 30 ns a proposal. Refuses odds that are no numbers in [0, 1], layers without a cost, and
/// weights out of range. Reusable, so that a run allocates nothing once it has seen the largest
/// problem.
class Annealer {
 public:
  Status run(const AnnealProblem& problem, const AnnealSchedule& schedule, AnnealResult& result);

 private:
  struct Entry {
    float odds;
    std::uint16_t layer;
    std::uint8_t in_hbm;  ///< at the start
    std::uint8_t free;    ///< needs no crossing to be in HBM
    std::uint32_t index;
  };
  struct Swap {
    std::uint32_t inside;
    std::uint32_t outside;
  };

  class Draws;
  /// Where a run stands.
  struct Walk {
    double energy;
    double best;
    double temperature;
    double best_at_check;
    std::uint64_t next_check;
    std::uint64_t next_cooling;
  };

  Status load(const AnnealProblem& problem);
  double first_temperature(const AnnealProblem& problem, std::uint64_t seed) const;
  void propose(const AnnealProblem& problem, const AnnealSchedule& schedule, Walk& walk,
               AnnealResult& result);
  bool passes(double change, double temperature, Rng& rng) const;
  void conclude(const AnnealProblem& problem, AnnealResult& result);
  double change(const AnnealProblem& problem, const Entry& leaves, const Entry& comes) const;
  void commit(const AnnealProblem& problem, Swap swap);
  void restore_best();

  std::vector<Entry> inside_;
  std::vector<Entry> outside_;
  std::vector<double> misses_;
  std::vector<double> cost_;
  std::vector<Swap> since_best_;
  std::vector<float> thresholds_;  ///< -ln of evenly spaced numbers in (0, 1)
};

}  // namespace lehr::placement
