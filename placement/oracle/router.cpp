// SPDX-License-Identifier: Apache-2.0
#include "placement/oracle/router.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement {

namespace {

constexpr Seconds kImpossible = 1e30;

Seconds blur(const Router::Search& search) {
  return search.temperature > 0 ? -search.temperature * std::log1p(-search.rng->uniform()) : 0.0;
}

}  // namespace

Router::Router(const Instance& instance, const VisitChains& chains, const Schedule& schedule)
    : instance_(instance), chains_(chains), schedule_(schedule), ledger_(instance) {
  for (PageId p = 0; p < instance_.pages(); ++p) enter(p, 1);
}

void Router::enter(PageId page, int sign) {
  const std::uint32_t end = chains_.end[page];
  Tick from = instance_.birth[page];
  for (std::uint32_t i = chains_.begin_of(page); i < end; ++i) {
    const Tick v = chains_.tick[i];
    const Way way = schedule_[i];
    if (way == kReadInPlace) {
      const bool installs = i + 1 < end && schedule_[i + 1] == kKept;
      ledger_.add(v, installs ? sign : 0, sign);
      if (installs) ledger_.hold(v, v + 1, sign);
    } else {
      ledger_.add(v, sign, 0);
      if (way != kKept) ledger_.add(way, sign, sign);
      ledger_.hold(way == kKept ? from : way, v + 1, sign);
    }
    from = v + 1;
  }
}

Router::Arrival Router::arrive(Tick from, Tick first_fill, Tick v, Seconds kept, Seconds limit,
                               const Search& search) const {
  Arrival best{kImpossible, false, kNever};
  const Seconds keep_blur = blur(search);
  const Seconds fill_blur = blur(search);
  Seconds held = search.slot_price[v];  // by the slot from t to the visit
  for (Tick t = v; held < limit;) {
    if (t == from) {
      const Seconds keep = kept + held + keep_blur;
      if (keep <= best.cost) best = {keep, true, kNever};
      break;
    }
    --t;
    if (ledger_.full(t)) break;
    held += search.slot_price[t];
    const Seconds fill = held + ledger_.bring(t) + fill_blur;
    if (fill < best.cost && t >= first_fill) best = {fill, false, t};
  }
  return best;
}

void Router::forward(PageId page, const Search& search) {
  const std::uint32_t begin = chains_.begin_of(page);
  const std::uint32_t end = chains_.end[page];
  choices_.assign(end - begin, Choice{});
  const bool in_hbm = instance_.born_in_hbm[page] != 0;
  // All relative to the cheapest way that ends out of HBM: `kept` is the surcharge for being in it.
  Seconds kept = in_hbm ? 0 : kImpossible;
  Tick from = instance_.birth[page];
  for (std::uint32_t i = begin; i < end; ++i) {
    const Tick v = chains_.tick[i];
    // Read in the tick in which it became a page: it cannot have left yet, nor its slot been given
    // away.
    const bool forced = in_hbm && i == begin && v == from;
    const bool full = ledger_.full(v) && !forced;
    const Seconds miss = forced ? kImpossible : ledger_.cross(v) + blur(search);
    const Seconds install = full || forced ? kImpossible : ledger_.bring(v) + search.slot_price[v];
    // A page born in HBM cannot be promoted in that tick.
    const Tick first_fill = in_hbm && i == begin ? from + 1 : from;
    Seconds hit = kImpossible;
    Choice& choice = choices_[i - begin];
    if (!full) {
      const Arrival a = arrive(from, first_fill, v, kept, install - ledger_.read(v), search);
      hit = a.cost + ledger_.read(v);
      choice.kept = a.kept;
      choice.fill = a.fill;
    }
    choice.hit = hit <= miss;
    choice.hit_if_kept = hit <= install;
    kept = std::min(hit, install) - std::min(hit, miss);
    from = v + 1;
  }
}

void Router::backward(PageId page) {
  const std::uint32_t begin = chains_.begin_of(page);
  bool stays = false;  // in HBM after visit i
  for (std::uint32_t i = chains_.end[page]; i-- > begin;) {
    const Choice& choice = choices_[i - begin];
    const bool hit = stays ? choice.hit_if_kept : choice.hit;
    schedule_[i] = !hit ? kReadInPlace : choice.kept ? kKept : choice.fill;
    stays = hit && choice.kept;
  }
}

/// A page that crosses in `from` crosses in `to` instead, and holds a slot from then on.
void Router::bring_ahead(const Crossing& c, Tick from, Tick to) {
  const bool in_place = schedule_[c.visit] == kReadInPlace;
  const bool had_slot = !in_place || installs(c);
  // In `from` a promotion was written; what was read in place is read from HBM now.
  ledger_.add(from, !in_place ? -1 : had_slot ? 0 : 1, -1);
  ledger_.add(to, 1, 1);
  ledger_.hold(to, had_slot ? from : from + 1, 1);
  schedule_[c.visit] = to;
}

Router::Crossings Router::crossings_by_tick() const {
  Crossings out(instance_.ticks());
  for (PageId p = 0; p < instance_.pages(); ++p) {
    for (std::uint32_t i = chains_.begin_of(p); i < chains_.end[p]; ++i) {
      const Way way = schedule_[i];
      if (way != kKept) out[way == kReadInPlace ? chains_.tick[i] : way].push_back({p, i});
    }
  }
  return out;
}

/// The first tick in which a page could cross for a visit: not before its last visit, nor before it
/// exists.
Tick Router::earliest(const Crossing& c) const {
  if (c.visit != chains_.begin_of(c.page)) return chains_.tick[c.visit - 1] + 1;
  return instance_.birth[c.page] + (instance_.born_in_hbm[c.page] != 0 ? 1 : 0);
}

/// What a tick's crossings need if they are brought ahead of it together.
Router::Group Router::group(const std::vector<Crossing>& crossing) const {
  Group out;
  for (const Crossing& c : crossing) {
    out.earliest = std::max(out.earliest, earliest(c));
    const bool in_place = schedule_[c.visit] == kReadInPlace;
    out.slots += in_place && !installs(c) ? 1 : 0;
    out.reads += !in_place ? -1 : installs(c) ? 0 : 1;
  }
  return out;
}

/// The latest tick before t whose own crossings take those of t along for less than t saves, or
/// kNever.
Tick Router::host_of(Tick t, Tick reach, const Crossings& by_tick) {
  const auto n = static_cast<int>(by_tick[t].size());
  const Group g = group(by_tick[t]);
  if (ledger_.free(t) < g.slots) return kNever;
  const Tick first = std::max(g.earliest, t > reach ? t - reach : 0);
  const Seconds saved = ledger_.time(t) - ledger_.time_with(t, g.reads, -n);
  for (Tick to = t; to-- > first && ledger_.free(to) >= n;) {
    if (by_tick[to].empty()) continue;
    if (ledger_.time_with(to, n, n) - ledger_.time(to) < saved) return to;
  }
  return kNever;
}

void Router::merge_crossings(Tick reach) {
  Crossings by_tick = crossings_by_tick();
  for (Tick t = instance_.ticks(); t-- > 1;) {
    std::vector<Crossing>& crossing = by_tick[t];
    if (crossing.empty()) continue;
    const Tick to = host_of(t, reach, by_tick);
    if (to == kNever) continue;
    for (const Crossing& c : crossing) bring_ahead(c, t, to);
    by_tick[to].insert(by_tick[to].end(), crossing.begin(), crossing.end());
    crossing.clear();
  }
}

void Router::reroute(PageId page, const Search& search) {
  if (chains_.begin_of(page) == chains_.end[page]) return;
  enter(page, -1);
  forward(page, search);
  backward(page);
  enter(page, 1);
}

}  // namespace lehr::placement
