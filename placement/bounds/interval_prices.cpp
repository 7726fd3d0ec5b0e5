// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/interval_prices.hpp"

#include <algorithm>
#include <bit>

#include "kernels/base/rng.hpp"

namespace lehr::placement::bounds {

namespace {

constexpr Price kImpossible = Price{1} << 60;

}  // namespace

IntervalPricer::IntervalPricer(const Instance& instance, const VisitChains& chains,
                               std::uint32_t stride)
    : ticks_(instance.ticks()) {
  for (PageId p = 0; p < instance.pages(); ++p) {
    if (stride > 1 && Rng::mix(p) % stride != 0) continue;
    const std::uint32_t first = chains.begin_of(p);
    const std::uint32_t last = chains.end[p];
    if (first == last) continue;
    tick_.insert(tick_.end(), chains.tick.begin() + first, chains.tick.begin() + last);
    starts_.push_back({static_cast<std::uint32_t>(tick_.size()), instance.birth[p],
                       instance.born_in_hbm[p] != 0});
  }
  choice_.resize(tick_.size());
  crossed_.resize(tick_.size());
  marked_.resize(tick_.size());
  marked_at_.resize(ticks_);
  held_.resize(ticks_ + std::size_t{1});
  fill_.resize(static_cast<std::size_t>(std::bit_width(ticks_)));
  for (auto& level : fill_) level.resize(ticks_);
  demand_.hbm.resize(ticks_);
  demand_.link.resize(ticks_);
  demand_.slot.resize(ticks_ + std::size_t{1});
}

void IntervalPricer::mark_crossings() {
  std::fill(marked_at_.begin(), marked_at_.end(), 0U);
  marked_ = crossed_;
  for (std::size_t i = 0; i < tick_.size(); ++i) marked_at_[tick_[i]] += marked_[i];
}

void IntervalPricer::share_starts(std::span<const Price> start, Prices& prices) const {
  prices.start.assign(ticks_, 0);
  for (Tick s = 0; s < ticks_; ++s) {
    // A visit pays `share` less the slots until then: the nearer ones more. The shares of `payers`
    // visits that hold `held` slots in all sum to payers * share - held.
    Price held = 0;
    Price payers = 0;
    Price slots = 0;
    Price share = 0;
    for (Tick v = s; v < ticks_ && v - s < kReach; ++v) {
      if (payers > 0 && slots >= share) break;
      payers += marked_at_[v];
      held += slots * marked_at_[v];
      if (payers > 0) share = (start[s] + held) / payers;
      slots += prices.slot[v];
    }
    prices.start[s] = share;
  }
}

void IntervalPricer::prepare(const Prices& prices) {
  start_ = prices.start;
  held_[0] = 0;
  for (Tick t = 0; t < ticks_; ++t) {
    held_[t + 1] = held_[t] + prices.slot[t];
    // A fill at t pays the crossing, the write and the slot from t on; the rest of the sum is the
    // visit's.
    fill_[0][t] = prices.link[t] + prices.hbm[t] - held_[t];
  }
  Tick half = 1;
  for (std::size_t k = 1; k < fill_.size(); ++k, half *= 2) {
    for (Tick t = 0; t + 2 * half <= ticks_; ++t) {
      fill_[k][t] = std::min(fill_[k - 1][t], fill_[k - 1][t + half]);
    }
  }
}

Price IntervalPricer::cheapest_fill(Tick from, Tick to) const {
  if (from >= to) return kImpossible;
  const Tick span = std::bit_floor(to - from);
  const std::vector<Price>& level = fill_[static_cast<std::size_t>(std::countr_zero(span))];
  return std::min(level[from], level[to - span]);
}

Tick IntervalPricer::cheapest_fill_tick(Tick from, Tick to) const {
  // Descend into the half that holds the minimum; the latest tick of equal ones holds a slot least
  // long.
  const Price best = cheapest_fill(from, to);
  while (to - from > 1) {
    const Tick middle = from + (to - from) / 2;
    if (cheapest_fill(middle, to) == best) {
      from = middle;
    } else {
      to = middle;
    }
  }
  return from;
}

IntervalPricer::Fill IntervalPricer::fill_for(std::uint32_t visit, Tick from, Tick v) const {
  if (start_.empty() || marked_[visit] == 0) return {cheapest_fill(from, v), kNever};
  const Tick near = v - std::min(v, kReach - 1);
  Fill best{cheapest_fill(from, near), kNever};
  for (Tick s = std::max(from, near); s < v; ++s) {
    const Price share = std::max<Price>(0, start_[s] - (held_[v] - held_[s]));
    const Price price = fill_[0][s] + share;
    if (price <= best.price) best = {price, s};
  }
  return best;
}

Price IntervalPricer::forward(const Prices& prices) {
  Price total = 0;
  std::uint32_t i = 0;
  for (const Start& start : starts_) {
    // All relative to the cheapest way that ends out of HBM: `kept` is the surcharge for being in
    // it.
    Price kept = start.in_hbm ? 0 : kImpossible;
    Tick from = start.birth;
    for (; i < start.end; ++i) {
      const Tick v = tick_[i];
      const Price keep = kept - held_[from];
      const Price fill = fill_for(i, from, v).price;
      const Price hit = std::min(keep, fill) + held_[v + 1] + prices.hbm[v];
      const Price share = start_.empty() || marked_[i] == 0 ? 0 : start_[v];
      const Price miss = prices.link[v] + share;
      const Price install = miss + prices.hbm[v] + prices.slot[v];
      const Price out = std::min(hit, miss);
      kept = std::min(hit, install) - out;
      total += out;
      choice_[i] =
          static_cast<std::uint8_t>((hit <= miss ? kHit : 0) | (hit <= install ? kHitIfKept : 0) |
                                    (keep <= fill ? kKept : 0));
      from = v + 1;
    }
  }
  return total;
}

/// When the visit's page is filled ahead, at the last prices.
Tick IntervalPricer::fill_tick(std::uint32_t visit, Tick from, Tick v) const {
  const Tick near = fill_for(visit, from, v).tick;
  if (near != kNever) return near;
  const bool shares = !start_.empty() && marked_[visit] != 0;
  return cheapest_fill_tick(from, shares ? std::max(from + 1, v - std::min(v, kReach - 1)) : v);
}

/// Adds what a visit asks for. `from` is the first tick after the visit before, `stays` says
/// whether the page is in HBM after this one; true if it was kept for it. Slots are differences.
bool IntervalPricer::count_visit(std::uint32_t visit, Tick from, bool stays) {
  const Tick v = tick_[visit];
  const bool hit = (choice_[visit] & (stays ? kHitIfKept : kHit)) != 0;
  const bool kept = hit && (choice_[visit] & kKept) != 0;
  crossed_[visit] = kept ? 0 : 1;
  if (!hit) {
    ++demand_.link[v];
    if (!stays) return false;
    ++demand_.hbm[v];
    ++demand_.slot[v];
    --demand_.slot[v + 1];
    return false;
  }
  ++demand_.hbm[v];
  --demand_.slot[v + 1];
  if (kept) {
    ++demand_.slot[from];
    return true;
  }
  const Tick since = fill_tick(visit, from, v);
  ++demand_.link[since];
  ++demand_.hbm[since];
  ++demand_.slot[since];
  return false;
}

void IntervalPricer::backward() {
  std::fill(demand_.hbm.begin(), demand_.hbm.end(), 0U);
  std::fill(demand_.link.begin(), demand_.link.end(), 0U);
  std::fill(demand_.slot.begin(), demand_.slot.end(), 0);
  for (std::size_t s = starts_.size(); s-- > 0;) {
    const Start& start = starts_[s];
    const std::uint32_t first = s == 0 ? 0 : starts_[s - 1].end;
    bool stays = false;  // in HBM after visit i
    for (std::uint32_t i = start.end; i-- > first;) {
      stays = count_visit(i, i == first ? start.birth : tick_[i - 1] + 1, stays);
    }
  }
  for (Tick t = 1; t < ticks_; ++t) demand_.slot[t] += demand_.slot[t - 1];
}

const Demand& IntervalPricer::price(const Prices& prices) {
  prepare(prices);
  demand_.cost = forward(prices);
  backward();
  return demand_;
}

Price IntervalPricer::cost(const Prices& prices) {
  prepare(prices);
  return forward(prices);
}

}  // namespace lehr::placement::bounds
