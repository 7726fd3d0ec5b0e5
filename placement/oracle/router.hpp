// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "kernels/base/rng.hpp"
#include "placement/oracle.hpp"
#include "placement/oracle/ledger.hpp"

namespace lehr::placement {

/// A feasible schedule with its ledger, changed page by page.
class Router {
 public:
  /// Starts with a schedule that schedule_time() accepts.
  Router(const Instance& instance, const VisitChains& chains, const Schedule& schedule);

  /// How a page looks for its way: slots cost `slot_price` besides, and each option is blurred by a
  /// delay drawn with mean `temperature`, so that a worse way is taken now and then.
  struct Search {
    std::span<const Seconds> slot_price;
    Seconds temperature = 0;
    Rng* rng = nullptr;
  };
  /// Takes the page out and lets it take its best way through the slots that are left: a shortest
  /// path over its visits, each interval kept, dropped, or filled by a promotion at its best tick.
  void reroute(PageId page, const Search& search);

  /// A transfer's start is paid by the tick, not by the page: tries to bring everything that
  /// crosses in a tick ahead of it, with the crossings of an earlier one. Every tick is tried once,
  /// against the `reach` ticks before it; whatever makes the schedule no faster is undone.
  void merge_crossings(Tick reach);

  const Schedule& schedule() const { return schedule_; }
  const Ledger& ledger() const { return ledger_; }

 private:
  struct Choice {
    bool hit = false;
    bool hit_if_kept = false;
    bool kept = false;
    Tick fill = kNever;
  };
  struct Arrival {
    Seconds cost;
    bool kept;
    Tick fill;
  };
  /// Adds the page's ways to the ledger, or takes them out (sign -1).
  void enter(PageId page, int sign);
  /// The cheapest way to be in HBM at v. `kept` is the surcharge for having been there at `from`;
  /// promotions are possible from `first_fill` on. Gives up at `limit`.
  Arrival arrive(Tick from, Tick first_fill, Tick v, Seconds kept, Seconds limit,
                 const Search& search) const;
  struct Crossing {
    PageId page;
    std::uint32_t visit;
  };
  bool installs(const Crossing& c) const {
    return schedule_[c.visit] == kReadInPlace && c.visit + 1 < chains_.end[c.page] &&
           schedule_[c.visit + 1] == kKept;
  }
  using Crossings = std::vector<std::vector<Crossing>>;  ///< by tick
  struct Group {
    Tick earliest = 0;  ///< tick for which all can be brought ahead
    int slots = 0;      ///< that they need in the tick itself
    int reads = 0;      ///< pages more, or less, that HBM reads or writes in it
  };
  Crossings crossings_by_tick() const;
  Tick earliest(const Crossing& c) const;
  Group group(const std::vector<Crossing>& crossing) const;
  Tick host_of(Tick t, Tick reach, const Crossings& by_tick);
  void bring_ahead(const Crossing& c, Tick from, Tick to);
  void forward(PageId page, const Search& search);
  void backward(PageId page);

  const Instance& instance_;
  const VisitChains& chains_;
  Schedule schedule_;
  Ledger ledger_;
  std::vector<Choice> choices_;
};

}  // namespace lehr::placement
