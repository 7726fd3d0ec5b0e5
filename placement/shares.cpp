// SPDX-License-Identifier: Apache-2.0
#include "placement/shares.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace lehr::placement {

Status check_shares(std::span<const OddsHistogram> groups, std::uint32_t layers,
                    const std::vector<Share>& shares) {
  for (const Share& s : shares) {
    if (s.group < groups.size() && s.layer < layers && s.least <= OddsHistogram::kBins &&
        s.lowers <= LowerHistogram::kBins) {
      continue;
    }
    return invalid("shares: group " + std::to_string(s.group) + ", layer " +
                   std::to_string(s.layer) + ", threshold " + std::to_string(s.least) +
                   ": out of range");
  }
  return {};
}

std::uint32_t common_threshold(std::span<const OddsHistogram> groups,
                               const std::vector<Share>& shares, std::uint64_t capacity) {
  std::uint64_t held = 0;
  std::uint32_t least = OddsHistogram::kBins;
  while (least > 0) {
    std::uint64_t more = 0;
    for (const Share& s : shares) more += groups[s.group].pages(least - 1);
    if (held + more > capacity) break;
    held += more;
    --least;
  }
  return least;
}

void ShareAnnealer::load(std::span<const OddsHistogram> groups, const MissCost& cost,
                         const std::vector<Share>& shares) {
  std::fill(misses_.begin(), misses_.end(), 0.0);
  held_ = 0;
  for (const Share& s : shares) {
    const OddsHistogram& h = groups[s.group];
    for (std::uint32_t b = 0; b < s.least; ++b) misses_[s.layer] += h.odds(b);
    for (std::uint32_t b = s.least; b < OddsHistogram::kBins; ++b) held_ += h.pages(b);
    if (lowerable_ == nullptr) continue;
    const LowerHistogram& l = lowerable_->groups[s.group];
    for (std::uint32_t b = s.lowers; b < LowerHistogram::kBins; ++b) misses_[s.layer] -= l.saved(b);
  }
  for (double& misses : misses_) misses = std::max(misses, 0.0);
  mass_ = lowered_mass(shares);
  for (std::size_t l = 0; l < misses_.size(); ++l) cost_[l] = cost.at(misses_[l]);
}

Seconds ShareAnnealer::time() const { return std::accumulate(cost_.begin(), cost_.end(), 0.0); }

void ShareAnnealer::start(std::span<const OddsHistogram> groups, const MissCost& cost,
                          std::uint64_t capacity, std::vector<Share>& shares,
                          SharesResult& result) {
  common_ = shares;
  const std::uint32_t least = common_threshold(groups, shares, capacity);
  for (Share& s : common_) s.least = least;
  if (lowerable_ != nullptr) {
    fit_lowering(shares);
    fit_lowering(common_);
  }
  load(groups, cost, common_);
  result.common = time();
  load(groups, cost, shares);
  if (held_ > capacity || time() >= result.common) {
    shares = common_;
    load(groups, cost, shares);
  }
  result.before = time();
  start_ = shares;
  best_ = shares;
}

double ShareAnnealer::lowered_mass(const std::vector<Share>& shares) const {
  double mass = 0;
  if (lowerable_ == nullptr) return mass;
  for (const Share& s : shares) {
    const LowerHistogram& l = lowerable_->groups[s.group];
    for (std::uint32_t b = s.lowers; b < LowerHistogram::kBins; ++b) mass += l.mass(b);
  }
  return mass;
}

/// What was found for other masses may take more than there is now: the least worth goes first.
void ShareAnnealer::fit_lowering(std::vector<Share>& shares) const {
  double mass = lowered_mass(shares);
  for (std::uint32_t b = 0; b < LowerHistogram::kBins && mass > lowerable_->mass; ++b) {
    for (Share& s : shares) {
      if (s.lowers > b) continue;
      mass -= lowerable_->groups[s.group].mass(b);
      s.lowers = b + 1;
    }
  }
  // What is left of sums of differences is no mass.
  if (lowered_mass(shares) <= std::max(lowerable_->mass, 0.0)) return;
  for (Share& s : shares) s.lowers = LowerHistogram::kBins;
}

/// The next bin with pages is lowered by the one, and as many less by the other as the mass asks
/// for, at most four. False if that is not to be had, or saves nothing.
bool ShareAnnealer::weigh_lowering(const MissCost& cost, const Share& grows, const Share& gives,
                                   Move& move) const {
  const LowerHistogram& g = lowerable_->groups[grows.group];
  const LowerHistogram& h = lowerable_->groups[gives.group];
  move = {};
  while (move.more < grows.lowers && g.mass(grows.lowers - move.more) == 0) ++move.more;
  if (grows.lowers < move.more) return false;
  const double mass = g.mass(grows.lowers - move.more);
  double room = lowerable_->mass - mass_;
  if (&grows != &gives) {
    std::uint32_t given = 0;
    while (room < mass && given < 4 && gives.lowers + move.bins < LowerHistogram::kBins) {
      const std::uint32_t b = gives.lowers + move.bins;
      room += h.mass(b);
      move.lost += h.saved(b);
      given += h.mass(b) > 0 ? 1 : 0;
      ++move.bins;
    }
  }
  if (room < mass || mass == 0) return false;
  move.won = g.saved(grows.lowers - move.more);
  move.mass = lowerable_->mass - (room - mass);
  weigh_misses(cost, grows, gives, move);
  return move.change != 0;
}

void ShareAnnealer::weigh_misses(const MissCost& cost, const Share& grows, const Share& gives,
                                 Move& move) const {
  if (grows.layer == gives.layer) {
    move.change = cost.at(misses_[grows.layer] - move.won + move.lost) - cost_[grows.layer];
  } else {
    move.change = cost.at(misses_[grows.layer] - move.won) - cost_[grows.layer] +
                  cost.at(misses_[gives.layer] + move.lost) - cost_[gives.layer];
  }
}

/// One bin more for the one, and as many of the other as make room, at most four. False if that is
/// not to be had.
bool ShareAnnealer::weigh(std::span<const OddsHistogram> groups, const MissCost& cost,
                          std::uint64_t capacity, const Share& grows, const Share& gives,
                          Move& move) const {
  if (grows.least == 0) return false;
  const OddsHistogram& g = groups[grows.group];
  const OddsHistogram& h = groups[gives.group];
  const std::uint32_t more = g.pages(grows.least - 1);
  std::uint64_t room = capacity - held_;
  move = {};
  if (&grows != &gives) {
    while (room < more && move.bins < 4 && gives.least + move.bins < OddsHistogram::kBins) {
      room += h.pages(gives.least + move.bins);
      move.lost += h.odds(gives.least + move.bins);
      ++move.bins;
    }
  }
  if (room < more) return false;
  move.won = g.odds(grows.least - 1);
  move.held = capacity - (room - more);
  weigh_misses(cost, grows, gives, move);
  return true;
}

void ShareAnnealer::make(const Move& move, const MissCost& cost, Share& grows, Share& gives) {
  --grows.least;
  gives.least += move.bins;
  held_ = move.held;
  follow(move, cost, grows, gives);
}

void ShareAnnealer::make_lowering(const Move& move, const MissCost& cost, Share& grows,
                                  Share& gives) {
  grows.lowers -= move.more;
  gives.lowers += move.bins;
  mass_ = move.mass;
  follow(move, cost, grows, gives);
}

void ShareAnnealer::follow(const Move& move, const MissCost& cost, const Share& grows,
                           const Share& gives) {
  misses_[grows.layer] -= move.won;
  cost_[grows.layer] = cost.at(misses_[grows.layer]);
  misses_[gives.layer] += move.lost;
  cost_[gives.layer] = cost.at(misses_[gives.layer]);
}

Status ShareAnnealer::run(std::span<const OddsHistogram> groups, const MissCost& cost,
                          std::uint32_t layers, std::uint64_t capacity, std::uint64_t proposals,
                          std::uint64_t seed, std::vector<Share>& shares, SharesResult& result,
                          const Lowerable* lowerable) {
  result = {};
  LEHR_TRY(check_shares(groups, layers, shares));
  if (lowerable != nullptr && lowerable->groups.size() != groups.size())
    return invalid("shares: what may be lowered is of other groups");
  lowerable_ = lowerable;
  misses_.assign(layers, 0);
  cost_.assign(layers, 0);
  if (shares.empty()) return {};
  start(groups, cost, capacity, shares, result);

  // Worsening moves of a thousandth of the time pass now and then at first, of nothing at the end.
  constexpr double kHot = 1e-3;
  Seconds now = result.before;
  Seconds best = now;
  Rng rng(seed);
  const auto count = static_cast<std::uint32_t>(shares.size());
  Move move;
  for (std::uint64_t n = 0; n < proposals; ++n) {
    Share& grows = shares[rng.below(count)];
    Share& gives = shares[rng.below(count)];
    const bool lowering = lowerable_ != nullptr && rng.below(4) == 0;
    if (!(lowering ? weigh_lowering(cost, grows, gives, move)
                   : weigh(groups, cost, capacity, grows, gives, move))) {
      continue;
    }
    if (move.change > 0) {
      const double left = 1 - static_cast<double>(n) / static_cast<double>(proposals);
      // A triangle instead of exp(): no library's last bit is in the plan.
      if (move.change > kHot * left * now * rng.uniform() * rng.uniform()) continue;
    }
    if (lowering) {
      make_lowering(move, cost, grows, gives);
    } else {
      make(move, cost, grows, gives);
    }
    now += move.change;
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
