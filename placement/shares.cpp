// SPDX-License-Identifier: Apache-2.0
#include "placement/shares.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace lehr::placement {

void ShareAnnealer::load(std::span<const OddsHistogram> groups, const MissCost& cost,
                         const std::vector<Share>& shares) {
  std::fill(misses_.begin(), misses_.end(), 0.0);
  held_ = 0;
  for (const Share& s : shares) {
    const OddsHistogram& h = groups[s.group];
    for (std::uint32_t b = 0; b < s.least; ++b) misses_[s.layer] += h.odds(b);
    for (std::uint32_t b = s.least; b < OddsHistogram::kBins; ++b) held_ += h.pages(b);
  }
  for (std::size_t l = 0; l < misses_.size(); ++l) cost_[l] = cost.at(misses_[l]);
}

Seconds ShareAnnealer::time() const { return std::accumulate(cost_.begin(), cost_.end(), 0.0); }

Status ShareAnnealer::run(std::span<const OddsHistogram> groups, const MissCost& cost,
                          std::uint32_t layers, std::uint64_t capacity, std::uint64_t proposals,
                          std::uint64_t seed, std::vector<Share>& shares, SharesResult& result) {
  constexpr std::uint32_t kBins = OddsHistogram::kBins;
  result = {};
  for (const Share& s : shares) {
    if (s.group >= groups.size() || s.layer >= layers || s.least > kBins) {
      return invalid("shares: group " + std::to_string(s.group) + ", layer " +
                     std::to_string(s.layer) + ", threshold " + std::to_string(s.least) +
                     ": out of range");
    }
  }
  misses_.assign(layers, 0);
  cost_.assign(layers, 0);
  if (shares.empty()) return {};

  // The common threshold: the lowest that fits.
  common_ = shares;
  std::uint64_t held = 0;
  std::uint32_t least = kBins;
  while (least > 0) {
    std::uint64_t more = 0;
    for (const Share& s : shares) more += groups[s.group].pages(least - 1);
    if (held + more > capacity) break;
    held += more;
    --least;
  }
  for (Share& s : common_) s.least = least;
  load(groups, cost, common_);
  result.common = time();
  load(groups, cost, shares);
  if (held_ > capacity || time() >= result.common) {
    shares = common_;
    load(groups, cost, shares);
  }
  Seconds now = time();
  Seconds best = now;
  result.before = now;
  best_ = shares;
  start_ = shares;

  // Worsening moves of a thousandth of the time pass now and then at first, of nothing at the end.
  constexpr double kHot = 1e-3;
  Rng rng(seed);
  const auto count = static_cast<std::uint32_t>(shares.size());
  for (std::uint64_t n = 0; n < proposals; ++n) {
    Share& grows = shares[rng.below(count)];
    Share& gives = shares[rng.below(count)];
    if (grows.least == 0) continue;
    const OddsHistogram& g = groups[grows.group];
    const OddsHistogram& h = groups[gives.group];
    const std::uint32_t more = g.pages(grows.least - 1);
    // As many bins of the other as make room, at most four.
    std::uint32_t bins = 0;
    std::uint64_t room = capacity - held_;
    double lost = 0;
    if (&grows != &gives) {
      while (room < more && bins < 4 && gives.least + bins < kBins) {
        room += h.pages(gives.least + bins);
        lost += h.odds(gives.least + bins);
        ++bins;
      }
    }
    if (room < more) continue;
    const double won = g.odds(grows.least - 1);
    double change = 0;
    if (grows.layer == gives.layer) {
      change = cost.at(misses_[grows.layer] - won + lost) - cost_[grows.layer];
    } else {
      change = cost.at(misses_[grows.layer] - won) - cost_[grows.layer] +
               cost.at(misses_[gives.layer] + lost) - cost_[gives.layer];
    }
    if (change > 0) {
      const double left = 1 - static_cast<double>(n) / static_cast<double>(proposals);
      // A triangle instead of exp(): no library's last bit is in the plan.
      if (change > kHot * left * now * rng.uniform() * rng.uniform()) continue;
    }
    --grows.least;
    gives.least += bins;
    held_ = capacity - (room - more);
    misses_[grows.layer] -= won;
    cost_[grows.layer] = cost.at(misses_[grows.layer]);
    misses_[gives.layer] += lost;
    cost_[gives.layer] = cost.at(misses_[gives.layer]);
    now += change;
    ++result.accepted;
    if (now < best) {
      best = now;
      best_ = shares;
    }
  }
  result.proposals = proposals;
  // Sums of differences drift: what is promised is added up afresh.
  load(groups, cost, best_);
  result.after = time();
  shares = best_;
  if (result.after < result.before) return {};
  shares = start_;
  result.after = result.before;
  return {};
}

}  // namespace lehr::placement
