// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/min_cost_flow.hpp"

#include <algorithm>
#include <cstdint>

#define LEMON_ONLY_TEMPLATES  // nothing of it is linked
#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

#include "placement/bounds/ascent.hpp"

namespace lehr::placement::bounds {

namespace {

using Graph = lemon::SmartDigraph;
using Simplex = lemon::NetworkSimplex<Graph, std::int64_t, Price>;

/// The network of one set of prices. Each visit has a node in which its page is in HBM for it, and
/// one for the page in HBM after it; the ticks are a line that idle slots walk along.
class Network {
 public:
  Network(const Instance& instance, const VisitChains& chains, Tick from)
      : instance_(instance),
        chains_(chains),
        from_(from),
        ready_(chains.tick.size(), lemon::INVALID),
        fills_(chains.tick.size()) {
    for (Tick t = from; t <= instance.ticks(); ++t) line_.push_back(graph_.addNode());
    for (Tick t = from; t < instance.ticks(); ++t) {
      idle_.push_back(arc(line(t), line(t + 1), instance.pinned[t], kMany, {}));
    }
    for (PageId p = 0; p < instance.pages(); ++p) add_page(p);
  }

  /// Lets visit i be served by a promotion in tick s; false if it could before.
  bool add_fill(std::uint32_t i, Tick s) {
    std::vector<Tick>& known = fills_[i];
    if (std::find(known.begin(), known.end(), s) != known.end()) return false;
    known.push_back(s);
    arc(line(s), ready_[i], 0, 1, {kFill, s});
    return true;
  }

  /// Of the pages from `from` on: calls fn(visit, first tick of its interval, tick).
  template <class Fn>
  void each_interval(Fn fn) const {
    for (PageId p = 0; p < instance_.pages(); ++p) {
      Tick since = std::max(from_, instance_.birth[p]);
      for (std::uint32_t i = chains_.begin_of(p); i < chains_.end[p]; ++i) {
        if (chains_.tick[i] < from_) continue;
        fn(i, since, chains_.tick[i]);
        since = chains_.tick[i] + 1;
      }
    }
  }

  /// The cheapest flow; fills prices.slot.
  double solve(Prices& prices) {
    Graph::ArcMap<std::int64_t> lower(graph_), upper(graph_);
    Graph::ArcMap<Price> cost(graph_);
    for (Graph::ArcIt a(graph_); a != lemon::INVALID; ++a) {
      const Arc& known = arcs_[static_cast<std::size_t>(graph_.id(a))];
      lower[a] = known.lower;
      upper[a] = known.upper;
      cost[a] = cost_of(known.what, prices);
    }
    Graph::NodeMap<std::int64_t> supply(graph_, 0);
    supply[line_.front()] = instance_.capacity;
    supply[line_.back()] = -std::int64_t{instance_.capacity};
    Simplex simplex(graph_);
    simplex.lowerMap(lower).upperMap(upper).costMap(cost).supplyMap(supply);
    if (simplex.run() != Simplex::OPTIMAL) return 0;  // no slots for the tails: refused before
    for (Tick t = from_; t < instance_.ticks(); ++t) {
      prices.slot[t] =
          std::max<Price>(0, simplex.potential(line(t)) - simplex.potential(line(t + 1)));
    }
    double all_missed = 0;
    each_interval(
        [&](std::uint32_t, Tick, Tick v) { all_missed += static_cast<double>(prices.link[v]); });
    return all_missed + simplex.totalCost<double>();
  }

 private:
  static constexpr std::int64_t kMany = std::int64_t{1} << 40;
  enum Kind : std::uint8_t { kFree, kFill, kHit, kInstall };
  struct What {
    Kind kind = kFree;
    Tick tick = 0;
  };
  struct Arc {
    std::int64_t lower, upper;
    What what;
  };

  Graph::Node line(Tick t) const { return line_[t - from_]; }

  Graph::Arc arc(Graph::Node a, Graph::Node b, std::int64_t lower, std::int64_t upper, What what) {
    arcs_.push_back({lower, upper, what});
    return graph_.addArc(a, b);
  }

  /// Against a visit that is read in place.
  static Price cost_of(const What& what, const Prices& prices) {
    const Tick t = what.tick;
    switch (what.kind) {
      case kFree:
        return 0;
      case kFill:
        return prices.link[t] + prices.hbm[t];
      case kHit:
        return prices.hbm[t] - prices.link[t];
      case kInstall:
        return prices.hbm[t];
    }
    return 0;
  }

  void add_page(PageId p) {
    const Tick born = instance_.birth[p];
    bool here = instance_.born_in_hbm[p] != 0 || born < from_;
    Graph::Node before = lemon::INVALID;  // the page in HBM after its last visit
    for (std::uint32_t i = chains_.begin_of(p); i < chains_.end[p]; ++i) {
      const Tick v = chains_.tick[i];
      if (v < from_) continue;
      ready_[i] = graph_.addNode();
      if (before != lemon::INVALID) {
        arc(before, ready_[i], 0, 1, {});
      } else if (here) {
        arc(line(std::max(from_, born)), ready_[i], 0, 1, {});
      }
      const Graph::Node after = graph_.addNode();
      arc(ready_[i], after, 0, 1, {kHit, v});
      arc(line(v), after, 0, 1, {kInstall, v});
      arc(after, line(v + 1), 0, 1, {});
      before = after;
      here = true;
    }
  }

  const Instance& instance_;
  const VisitChains& chains_;
  Tick from_;
  Graph graph_;
  std::vector<Arc> arcs_;  ///< by id
  std::vector<Graph::Node> line_;
  std::vector<Graph::Arc> idle_;
  std::vector<Graph::Node> ready_;        ///< by visit
  std::vector<std::vector<Tick>> fills_;  ///< by visit
};

}  // namespace

SlotFlow slot_flow(const Instance& instance, const VisitChains& chains, Prices prices, Tick from,
                   std::uint32_t rounds) {
  SlotFlow out;
  prices.start.clear();
  if (from >= instance.ticks()) {
    out.slot = std::move(prices.slot);
    return out;
  }
  Network network(instance, chains, from);
  IntervalPricer pricer(instance, chains, 1);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    // The best promotion of each interval at the present slot prices.
    pricer.cost(prices);
    bool more = false;
    network.each_interval([&](std::uint32_t i, Tick since, Tick v) {
      if (since < v) more |= network.add_fill(i, pricer.cheapest_fill_tick(since, v));
    });
    if (round > 0 && !more) break;
    out.cost = network.solve(prices);
  }
  out.slot = std::move(prices.slot);
  return out;
}

BoundValue flow_bound(const Instance& instance, std::span<const TickCost> costs,
                      const Weights& weights, const BoundOptions& options) {
  const VisitChains chains = visit_chains(instance);
  IntervalPricer pricer(instance, chains, 1);
  const auto from_tick = [&](Tick from) {
    Ascent ascent(instance, costs, pricer, 1, from);
    const SlotFlow flow = slot_flow(instance, chains, ascent.prices(weights), from);
    Weights exact = weights;
    for (std::size_t t = 0; t < exact.slot.size(); ++t) {
      exact.slot[t] = static_cast<double>(flow.slot[t]) * ascent.quantum();
    }
    ascent.evaluate(exact);
    return ascent.best();
  };
  const std::uint64_t warmup = std::uint64_t{options.warmup_steps} * instance.layers;
  const Seconds total = from_tick(0);
  return {"LB1", total,
          warmup == 0
              ? total
              : from_tick(static_cast<Tick>(std::min<std::uint64_t>(warmup, instance.ticks())))};
}

}  // namespace lehr::placement::bounds
