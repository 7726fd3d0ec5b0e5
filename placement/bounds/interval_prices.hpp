// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/instance.hpp"

namespace lehr::placement::bounds {

/// Prices by tick, as whole numbers of one quantum of time, so that sums are exact whatever their
/// order.
using Price = std::int64_t;
struct Prices {
  std::vector<Price> hbm;   ///< of a page read from or written to HBM
  std::vector<Price> link;  ///< of a crossing of the home link
  std::vector<Price> slot;  ///< of a slot held during the tick
  /// What a marked visit pays besides for a crossing in the tick, less the slots that it then holds
  /// until the visit: its share of the start. Empty: nothing.
  std::vector<Price> start;

  void resize(Tick ticks) {
    hbm.assign(ticks, 0);
    link.assign(ticks, 0);
    slot.assign(ticks, 0);
  }
};

/// What pages do at given prices, each on its own cheapest way.
struct Demand {
  Price cost = 0;
  std::vector<std::uint32_t> hbm;   ///< pages read or written, by tick
  std::vector<std::uint32_t> link;  ///< crossings
  std::vector<std::int32_t> slot;   ///< slots held
};

/// The visits of some pages, priced page by page: a shortest path over "in HBM after this visit" or
/// not, in which each interval is kept, dropped (the visit reads in place, and may install), or
/// filled ahead at the cheapest tick inside it. About 15 ns a visit.
class IntervalPricer {
 public:
  /// All pages p with p % stride == 0 after a fixed shuffle.
  IntervalPricer(const Instance& instance, const VisitChains& chains, std::uint32_t stride);

  /// The least cost of all pages at these prices, and one way to have it.
  const Demand& price(const Prices& prices);
  /// The cost alone: what a bound needs.
  Price cost(const Prices& prices);

  std::size_t visits() const { return tick_.size(); }

  /// The best tick in [from, to), at the last prices, to promote a page for a visit at `to`.
  Tick cheapest_fill_tick(Tick from, Tick to) const;

  /// Visits at most this many ticks after a crossing share in its start, the crossing's own tick
  /// counted.
  static constexpr Tick kReach = 8;
  /// The shares of the start: none but the visits that crossed in the last price() pay them from
  /// now on.
  void mark_crossings();
  /// The largest share that each tick can ask for, so that all who may pay it pay `start` at most.
  /// Needs prices.slot; fills prices.start.
  void share_starts(std::span<const Price> start, Prices& prices) const;

 private:
  struct Start {
    std::uint32_t end;  ///< in tick_
    Tick birth;
    bool in_hbm;
  };
  /// How a page got to a visit; bits of a choice.
  enum : std::uint8_t { kHit = 1, kHitIfKept = 2, kKept = 4 };

  void prepare(const Prices& prices);
  Price forward(const Prices& prices);
  void backward();
  bool count_visit(std::uint32_t visit, Tick from, bool stays);
  Tick fill_tick(std::uint32_t visit, Tick from, Tick v) const;
  struct Fill {
    Price price;  ///< of the crossing, the write, and the slots against time zero
    Tick tick;    ///< kNever: in the part that is far from the visit
  };
  Fill fill_for(std::uint32_t visit, Tick from, Tick v) const;
  Price cheapest_fill(Tick from, Tick to) const;

  Tick ticks_;
  std::vector<Start> starts_;
  std::vector<Tick> tick_;
  std::vector<std::uint8_t> choice_;
  std::vector<std::uint8_t> crossed_;     ///< in the last price()
  std::vector<std::uint8_t> marked_;      ///< pays a share of the start
  std::vector<std::uint32_t> marked_at_;  ///< such visits, by tick
  std::vector<Price> start_;              ///< of the present prices, or empty
  std::vector<Price> held_;               ///< sum of the slot prices before a tick
  std::vector<std::vector<Price>> fill_;  ///< range minima, level k over 2^k ticks
  Demand demand_;
};

}  // namespace lehr::placement::bounds
