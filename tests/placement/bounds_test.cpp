// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds.hpp"

#include <array>
#include <cmath>
#include <functional>

#include "catch2/catch.hpp"
#include "kernels/base/rng.hpp"
#include "placement/bounds/curve_minorant.hpp"
#include "placement/bounds/interval_prices.hpp"
#include "placement/bounds/min_cost_flow.hpp"
#include "placement/bounds/tick_cost.hpp"
#include "placement/bounds/water_fill.hpp"
#include "tests/support/exact_solver.hpp"

namespace lehr::placement {
namespace {

using test::TinyReplay;

/// Four pages of 100 bytes that every step reads in its only layer; two fit into HBM and start
/// there. HBM moves 1000 bytes/s, the link 100.
TinyReplay four_pages_two_slots(std::uint32_t steps, double flops = 0) {
  TinyReplay out = test::empty_replay(1000, 100, 2);
  for (int p = 0; p < 4; ++p) out.instance.add_page(0, p < 2);
  for (std::uint32_t t = 0; t < steps; ++t) {
    out.instance.open_tick(0, flops, 0);
    for (PageId p = 0; p < 4; ++p) out.instance.add_visit(p);
  }
  return out;
}

Bound bound_of(const TinyReplay& replay, std::uint32_t warmup = 0) {
  BoundOptions options;
  options.warmup_steps = warmup;
  const Result<Bound> bound = lower_bound(replay.instance, options);
  REQUIRE(bound);
  return *bound;
}

TEST_CASE("two of four pages cross in every step: two link times a step") {
  const Bound bound = bound_of(four_pages_two_slots(5), 2);
  CHECK(bound.each[0].name == "LB0");
  CHECK(bound.each[0].total == Approx(10.0).epsilon(1e-6));
  CHECK(bound.each[0].without_warmup == Approx(6.0).epsilon(1e-6));
  CHECK(bound.best.total == Approx(10.0).epsilon(1e-6));
  CHECK(bound.best.total <= 10.0);
}

TEST_CASE("compute hides the crossings up to its own time") {
  // 5 flop at 1 flop/s: the two crossings take 2 s beside them.
  CHECK(bound_of(four_pages_two_slots(5, 5)).best.total == Approx(25.0).epsilon(1e-6));
  // 1.5 flop hide 1.5 of the two.
  CHECK(bound_of(four_pages_two_slots(5, 1.5)).each[0].total == Approx(10.0).epsilon(1e-6));
}

TEST_CASE("with room for all, pages are read from both memories at once") {
  TinyReplay replay = four_pages_two_slots(1);
  replay.instance.capacity = 4;
  for (auto& in_hbm : replay.instance.born_in_hbm) in_hbm = 1;
  // Of 400 bytes the share x over the link: (400 - x) / 1000 = x / 100, 400 / 1100 s.
  CHECK(bound_of(replay).each[0].total == Approx(400.0 / 1100).epsilon(1e-6));
  // Whole pages cannot do that: 0.4 s, all from HBM.
  CHECK(test::exact_optimum(replay.instance) == Approx(0.4));
}

TEST_CASE("weights and latency enter a tick's time") {
  TinyReplay replay = four_pages_two_slots(1);
  replay.instance.fixed_hbm[0] = 5000;
  // The weights take 5 s, in which all four pages could cross.
  CHECK(bound_of(replay).best.total == Approx(5.0).epsilon(1e-6));
  replay.instance.fixed_hbm[0] = 0;
  replay.platform->links[0].latency = 0.25;
  // Two crossings: 0.25 + 2.
  CHECK(bound_of(replay).best.total == Approx(2.25).epsilon(1e-6));
  replay.platform->control_per_layer = 0.5;
  CHECK(bound_of(replay).best.total == Approx(2.75).epsilon(1e-6));
}

TEST_CASE("windows longer than a step prove more when each step alone just fits") {
  // Six pages, two a step in turn, three slots: no step overflows, three steps together do by
  // three.
  TinyReplay replay = test::empty_replay(1e6, 100, 3);
  Instance& in = replay.instance;
  for (PageId p = 0; p < 6; ++p) in.add_page(0, p < 3);
  for (std::uint32_t step = 0; step < 12; ++step) {
    in.open_tick(0, 0, 0);
    in.add_visit(2 * (step % 3));
    in.add_visit(2 * (step % 3) + 1);
  }
  const Bound bound = bound_of(replay);
  const Seconds optimum = test::exact_optimum(in);
  CHECK(bound.each[0].total < 0.01 * optimum);
  CHECK(bound.each[1].total > 0.9 * optimum);
  CHECK(bound.best.total <= optimum);
}

TEST_CASE("lower bounds stay below the optimum, on hundreds of random replays") {
  double tightness = 0;
  int replays = 0;
  int touching = 0;
  int promotions_matter = 0;
  std::array<int, 4> best{};
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    const TinyReplay replay = test::random_replay(seed);
    INFO("seed " << seed);
    REQUIRE(replay.instance.validate());
    const Seconds optimum = test::exact_optimum(replay.instance);
    if (!std::isfinite(optimum)) continue;  // what must be in HBM does not fit
    const Bound bound = bound_of(replay, 1);
    const Seconds rest = test::exact_optimum(replay.instance, {true, replay.instance.layers});
    for (const BoundValue& b : bound.each) {
      INFO(b.name);
      // The solver rounds too.
      CHECK(b.total <= optimum * (1 + 1e-12));
      CHECK(b.without_warmup <= rest * (1 + 1e-12));
      CHECK(b.total > 0);
    }
    CHECK(bound.each[1].total >= bound.each[0].total * (1 - 1e-9));
    const bool near = bound.best.total > 0.999999 * optimum;
    const Seconds kept_only = test::exact_optimum(replay.instance, {false, 0});
    CHECK(kept_only >= optimum);
    promotions_matter += kept_only > 1.0001 * optimum ? 1 : 0;
    tightness += bound.best.total / optimum;
    touching += near ? 1 : 0;
    ++replays;
    REQUIRE(bound.each.size() == best.size());
    for (std::size_t k = 0; k < best.size(); ++k) {
      best[k] += bound.each[k].total >= bound.best.total ? 1 : 0;
    }
  }
  // Controls: the bounds are tight enough for a bound that is too large to be noticed, each is the
  // best somewhere, and promotions help often enough for a bound that forgets them to be caught.
  CHECK(replays > 500);
  CHECK(touching > 40);
  CHECK(tightness / replays > 0.85);
  CHECK(promotions_matter > 20);
  for (const int count : best) CHECK(count > 0);
}

TEST_CASE("a bound is the same every time, and refuses a broken instance") {
  const TinyReplay replay = test::random_replay(5);
  CHECK(bound_of(replay).best.total == bound_of(replay).best.total);
  TinyReplay broken = four_pages_two_slots(2);
  SECTION("a page that does not exist") { broken.instance.visit[1] = 99; }
  SECTION("a page read twice in a tick") { broken.instance.visit[1] = 0; }
  SECTION("a read after death") { broken.instance.death[0] = 1; }
  SECTION("a read before birth") { broken.instance.birth[0] = 1; }
  SECTION("more tails than slots") { broken.instance.pinned[1] = 3; }
  SECTION("columns of unequal length") { broken.instance.flops.pop_back(); }
  SECTION("no platform") { broken.instance.platform = nullptr; }
  SECTION("no layers") { broken.instance.layers = 0; }
  CHECK_FALSE(lower_bound(broken.instance));
}

TEST_CASE("an empty replay takes no time") {
  TinyReplay replay = four_pages_two_slots(0);
  CHECK(bound_of(replay).best.total == 0);
}

TEST_CASE("curve minorants lie below the curve, and touch it where it is flat") {
  const BandwidthCurve rising({1e3, 1e4, 1e5, 1e6}, {1}, {10, 70, 60, 100});
  const BandwidthCurve falling({1e3, 1e6}, {1}, {100, 20});
  const BandwidthCurve flat(50);
  for (const BandwidthCurve* curve : {&rising, &falling, &flat}) {
    const auto minorant = bounds::CurveMinorant::of_bytes(*curve);
    bool control = false;
    for (const double touch : {0.0, 500.0, 3e3, 5e4, 7e5, 1e9}) {
      const bounds::Line line = minorant.near(touch);
      const bounds::Line steeper{line.base, line.slope * 1.1};
      for (int k = 0; k < 1800; ++k) {  // up to 10 GB
        const double bytes = std::pow(1.013, k);
        const double time = bytes / curve->at(bytes, 1);
        REQUIRE(line.at(bytes) <= time);
        control = control || steeper.at(bytes) > time;
      }
    }
    CHECK(control);
  }
  CHECK(bounds::CurveMinorant::of_bytes(flat).near(100).at(400) == Approx(8.0));
  CHECK(bounds::CurveMinorant::of_count(BandwidthCurve({4}, {1, 8}, {2, 8}), 4).near(1000).slope ==
        Approx(0.5));
}

TEST_CASE("the start of a tick's transfers counts once, whoever uses it") {
  const TinyReplay replay = test::two_bursts();
  const Seconds optimum = test::exact_optimum(replay.instance);  // all can cross in the first tick
  CHECK(optimum == Approx(1.04).epsilon(1e-3));
  const Bound bound = bound_of(replay);
  CHECK(bound.each.back().name == "LB2");
  CHECK(bound.each.back().total > 0.98 * optimum);
  CHECK(bound.each.back().total <= optimum);
  // Control: what knows no starts is far below.
  CHECK(bound.each[1].total < 0.1 * optimum);
}

/// What a marked visit at `v` pays for a crossing in tick `s`.
double start_share(const bounds::Prices& prices, Tick s, Tick v) {
  if (prices.start.empty() || v - s >= bounds::IntervalPricer::kReach) return 0;
  double share = static_cast<double>(prices.start[s]);
  for (Tick t = s; t < v; ++t) share -= static_cast<double>(prices.slot[t]);
  return std::max(0.0, share);
}

/// All ways of one page, by recursion over its visits; the dumb way. With starts every visit pays.
Seconds cheapest_way(const Instance& in, const std::vector<Tick>& visits, std::size_t i, bool held,
                     Tick from, const bounds::Prices& prices) {
  if (i == visits.size()) return 0;
  const Tick v = visits[i];
  double best = 1e300;
  const auto go_on = [&](double cost, bool here) {
    best = std::min(best, cost + cheapest_way(in, visits, i + 1, here, v + 1, prices));
  };
  const auto slots = [&](Tick a, Tick b) {
    double sum = 0;
    for (Tick t = a; t < b; ++t) sum += static_cast<double>(prices.slot[t]);
    return sum;
  };
  const auto hbm = [&](Tick t) { return static_cast<double>(prices.hbm[t]); };
  const auto link = [&](Tick t) {
    return static_cast<double>(prices.link[t]) + start_share(prices, t, v);
  };
  for (const bool on : {false, true}) {
    if (held) go_on(slots(from, v + 1) + hbm(v), on);
    for (Tick s = from; s < v; ++s) go_on(link(s) + hbm(s) + slots(s, v + 1) + hbm(v), on);
    go_on(link(v) + (on ? hbm(v) + slots(v, v + 1) : 0), on);
  }
  return best;
}

bounds::Prices random_prices(const Instance& in, Rng& rng) {
  bounds::Prices prices;
  prices.resize(in.ticks());
  for (Tick t = 0; t < in.ticks(); ++t) {
    prices.hbm[t] = rng.below(5);
    prices.link[t] = rng.below(20);
    prices.slot[t] = rng.below(6);
  }
  return prices;
}

double cheapest_ways(const Instance& in, const VisitChains& chains, const bounds::Prices& prices) {
  double sum = 0;
  for (PageId p = 0; p < in.pages(); ++p) {
    const std::vector<Tick> visits(chains.tick.begin() + chains.begin_of(p),
                                   chains.tick.begin() + chains.end[p]);
    sum += cheapest_way(in, visits, 0, in.born_in_hbm[p] != 0, in.birth[p], prices);
  }
  return sum;
}

TEST_CASE("pages find their cheapest ways, and say truly what they use") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    const VisitChains chains = visit_chains(in);
    Rng rng(seed);
    const bounds::Prices prices = random_prices(in, rng);
    bounds::IntervalPricer pricer(in, chains, 1);
    const bounds::Demand& demand = pricer.price(prices);
    CHECK(static_cast<double>(demand.cost) == cheapest_ways(in, chains, prices));
    bounds::Price used = 0;
    for (Tick t = 0; t < in.ticks(); ++t) {
      used += prices.hbm[t] * demand.hbm[t] + prices.link[t] * demand.link[t] +
              prices.slot[t] * demand.slot[t];
    }
    CHECK(used == demand.cost);
  }
}

TEST_CASE("starts: the shares of all who may pay are the start at most, and ways count them") {
  int paid = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    const VisitChains chains = visit_chains(in);
    Rng rng(seed);
    bounds::Prices prices = random_prices(in, rng);
    bounds::IntervalPricer pricer(in, chains, 1);
    // Every visit misses where HBM costs more than any link: all are marked.
    bounds::Prices dear = prices;
    for (auto& x : dear.hbm) x = 1000;
    pricer.price(dear);
    pricer.mark_crossings();
    std::vector<bounds::Price> start(in.ticks());
    for (auto& x : start) x = rng.below(60);
    pricer.share_starts(start, prices);
    for (Tick s = 0; s < in.ticks(); ++s) {
      double sum = 0;
      int payers = 0;
      for (Tick v = s; v < in.ticks() && v - s < bounds::IntervalPricer::kReach; ++v) {
        const double share = start_share(prices, s, v);
        sum += share * static_cast<double>(in.visits_at(v).size());
        payers += static_cast<int>(in.visits_at(v).size());
      }
      CHECK(sum <= static_cast<double>(start[s]));
      // Nothing is left over but for rounding down.
      if (payers > 0) CHECK(sum > static_cast<double>(start[s]) - payers);
    }
    const auto cost = static_cast<double>(pricer.price(prices).cost);
    CHECK(cost == cheapest_ways(in, chains, prices));
    bounds::Prices without = prices;
    without.start.clear();
    paid += cost > cheapest_ways(in, chains, without) ? 1 : 0;
  }
  CHECK(paid > 50);  // control: starts are paid
}

TEST_CASE("a flow of slots costs what its potentials prove") {
  int scarce = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    const VisitChains chains = visit_chains(in);
    Rng rng(seed);
    const bounds::Prices prices = random_prices(in, rng);
    bounds::Prices proof = prices;
    const bounds::SlotFlow flow = bounds::slot_flow(in, chains, prices, 0, 50);
    proof.slot = flow.slot;
    bounds::IntervalPricer pricer(in, chains, 1);
    double dual = static_cast<double>(pricer.cost(proof));
    for (Tick t = 0; t < in.ticks(); ++t) {
      CHECK(flow.slot[t] >= 0);
      scarce += flow.slot[t] > 0 ? 1 : 0;
      dual -= static_cast<double>(flow.slot[t]) * (in.capacity - in.pinned[t]);
    }
    CHECK(dual == Approx(flow.cost).margin(1e-6));
    // Other slot prices prove no more.
    double other = static_cast<double>(pricer.cost(prices));
    for (Tick t = 0; t < in.ticks(); ++t) {
      other -= static_cast<double>(prices.slot[t]) * (in.capacity - in.pinned[t]);
    }
    CHECK(other <= flow.cost + 1e-6);
  }
  CHECK(scarce > 100);
}

/// One window's bound, counted anew from the instance.
Seconds window_bound(const Instance& in, std::span<const bounds::TickCost> costs, Tick first,
                     Tick end) {
  double free_crossings = 0;
  Seconds time = 0;
  Seconds slope = 1e300;
  double needed = 0;
  for (Tick t = first; t < end; ++t) {
    const bounds::TickCost& c = costs[t];
    const auto visits = static_cast<double>(in.visits_at(t).size());
    // The least of a convex function, by ternary search.
    const auto at = [&](double n) {
      return std::max({c.floor, c.hbm.at(visits - n), c.link.at(n)});
    };
    double low = 0;
    double high = visits;
    for (int k = 0; k < 200; ++k) {
      const double a = low + (high - low) / 3;
      const double b = high - (high - low) / 3;
      if (at(a) < at(b)) {
        high = b;
      } else {
        low = a;
      }
    }
    const Seconds least = std::max(at(low), std::max(c.floor, c.link.base));
    time += c.control + least;
    free_crossings += std::max(0.0, (least - c.link.base) / c.link.slope);
    slope = std::min(slope, c.link.slope);
    for (const PageId p : in.visits_at(t)) {
      bool fresh = !(in.born_in_hbm[p] != 0 && in.birth[p] >= first);
      for (Tick s = first; s < t; ++s) {
        for (const PageId q : in.visits_at(s)) fresh = fresh && q != p;
      }
      needed += fresh ? 1 : 0;
    }
  }
  if (first > 0) needed -= in.capacity - in.pinned[first];
  return time + std::max(0.0, needed - free_crossings) * slope;
}

TEST_CASE("the best windows are the best of all ways to cut") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    const auto costs = bounds::tick_costs(in);
    Seconds best = 0;
    for (std::uint32_t cuts = 0; cuts < (1U << (in.ticks() - 1)); ++cuts) {
      Seconds sum = 0;
      Tick first = 0;
      for (Tick t = 1; t <= in.ticks(); ++t) {
        if (t < in.ticks() && (cuts >> (t - 1) & 1) == 0) continue;
        sum += window_bound(in, costs, first, t);
        first = t;
      }
      best = std::max(best, sum);
    }
    std::vector<bounds::Window> windows;
    const BoundValue found = bounds::best_windows(in, costs, 0, &windows);
    CHECK(found.total == Approx(best).epsilon(1e-7));
    Tick at = 0;
    for (const bounds::Window& w : windows) {
      CHECK(w.first == at);
      at = w.end;
    }
    CHECK(at == in.ticks());
  }
}

}  // namespace
}  // namespace lehr::placement
