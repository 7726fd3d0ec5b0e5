// SPDX-License-Identifier: Apache-2.0
#include "tests/support/exact_solver.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/base/rng.hpp"
#include "placement/plan_check.hpp"

namespace lehr::test {

using placement::Instance;

using placement::Platform;

std::unique_ptr<Platform> round_platform(double hbm, double link) {
  auto p = std::make_unique<Platform>();
  p->name = "round";
  p->tiers = {{"hbm", kGiB, true}, {"host", kGiB, true}};
  p->links = {{"h2d", 1, 0, BandwidthCurve(link), 0}, {"d2h", 0, 1, BandwidthCurve(link), 0}};
  p->hbm = BandwidthCurve(hbm);
  p->flops = 1;
  p->home = 1;
  return p;
}

TinyReplay empty_replay(double hbm, double link, std::uint32_t capacity) {
  TinyReplay out{round_platform(hbm, link), {}};
  out.instance.platform = out.platform.get();
  out.instance.page_bytes = 100;
  out.instance.capacity = capacity;
  return out;
}

TinyReplay two_bursts() {
  TinyReplay out = empty_replay(1e6, 1e4, 2);
  out.platform->links[out.platform->link(1, kHbm)].latency = 1;
  for (int p = 0; p < 4; ++p) out.instance.add_page(0, false);
  for (PageId t = 0; t < 2; ++t) {
    out.instance.open_tick(0, 0, 0);
    out.instance.add_visit(2 * t);
    out.instance.add_visit(2 * t + 1);
  }
  return out;
}

namespace {

double between(Rng& rng, double low, double high) { return low + (high - low) * rng.uniform(); }

std::unique_ptr<Platform> random_platform(Rng& rng) {
  auto p = round_platform(between(rng, 500, 2000), between(rng, 100, 800));
  if (rng.below(3) == 0) {
    const double top = between(rng, 500, 2000);
    p->hbm = BandwidthCurve({100, 400, 1600}, {1}, {top * between(rng, 0.3, 1), top * 0.9, top});
  }
  if (rng.below(3) == 0) {
    const double top = between(rng, 100, 800);
    p->links[0].curve = BandwidthCurve({100}, {1, 4}, {top * between(rng, 0.3, 1.2), top});
  }
  if (rng.below(3) == 0) p->links[0].latency = between(rng, 0, 0.5);
  if (rng.below(3) == 0) p->shared = {{0, 1, between(rng, 100, 600)}};
  p->control_per_layer = rng.below(2) == 0 ? 0 : between(rng, 0, 0.1);
  return p;
}

/// `born_at`: ticks in which a page becomes full, and is written back.
void draw_ticks(Rng& rng, const std::vector<std::uint32_t>& layer_of,
                const std::vector<std::uint8_t>& born_at, Instance& in) {
  const bool by_layer = rng.below(4) != 0;  // else any page in any tick
  const double eagerness = between(rng, 0.3, 1);
  for (Tick t = 0; t < born_at.size(); ++t) {
    in.open_tick(rng.below(300), rng.below(4) == 0 ? between(rng, 0, 1.5) : 0, in.layers);
    for (PageId p = 0; p < in.pages(); ++p) {
      const bool here = in.birth[p] <= t && (!by_layer || layer_of[p] == t % in.layers);
      if (here && rng.uniform() < eagerness) in.add_visit(p);
    }
    if (born_at[t] != 0) in.add_transfer(1, in.page_bytes, 1);
  }
}

}  // namespace

TinyReplay random_replay(std::uint64_t seed) {
  Rng rng(seed);
  TinyReplay out{random_platform(rng), {}};
  Instance& in = out.instance;
  in.platform = out.platform.get();
  in.page_bytes = 100;
  in.layers = 1 + rng.below(3);
  const std::uint32_t steps = 2 + rng.below(3);
  const Tick ticks = in.layers * steps;
  const std::uint32_t pages = 2 + rng.below(6);
  in.capacity = 1 + rng.below(4) + in.layers;

  // Every layer has a tail all along; some pages become full later, in HBM.
  std::uint32_t room = in.capacity - in.layers;
  std::vector<std::uint32_t> layer_of(pages);
  std::vector<std::uint8_t> born_at(ticks, 0);
  Tick born = 0;  // rising with the page
  for (PageId p = 0; p < pages; ++p) {
    const Tick later = born + 1 + rng.below(ticks);
    if (p >= pages / 2 && rng.below(2) == 0 && later >= in.layers && later < ticks) {
      born = later;
      born_at[born] = 1;
    }
    layer_of[p] = born == 0 ? rng.below(in.layers) : born % in.layers;
    const bool fits = room > 0 && rng.below(2) == 0;
    if (born == 0 && fits) --room;
    const bool arises = born > 0 && (p == 0 || in.birth[p - 1] != born);
    in.add_page(born, born == 0 ? fits : arises);
  }
  draw_ticks(rng, layer_of, born_at, in);
  return out;
}

namespace {

/// HBM at 1000 bytes/s, then tiers whose pages cross at 400, 100 and 40 bytes/s; the second is
/// home.
std::unique_ptr<Platform> unequal_platform(std::uint32_t tiers_below) {
  auto p = round_platform(1000, 100);
  p->tiers = {{"hbm", kGiB, true}, {"peer", kGiB, true}, {"host", kGiB, true}};
  p->links = {{"p2h", 1, 0, BandwidthCurve(400), 0},
              {"h2p", 0, 1, BandwidthCurve(400), 0},
              {"h2d", 2, 0, BandwidthCurve(100), 0},
              {"d2h", 0, 2, BandwidthCurve(100), 0}};
  if (tiers_below > 2) {
    p->tiers.push_back({"far", kGiB, true});
    p->links.push_back({"f2d", 3, 0, BandwidthCurve(40), 0});
    p->links.push_back({"d2f", 0, 3, BandwidthCurve(40), 0});
  }
  p->home = 2;
  return p;
}

}  // namespace

TinyReplay unequal_replay(std::uint64_t seed, std::uint32_t tiers_below) {
  Rng rng(seed);
  TinyReplay out{unequal_platform(tiers_below), {}};
  Instance& in = out.instance;
  in.platform = out.platform.get();
  in.page_bytes = 100;
  in.layers = 1 + rng.below(2);
  const std::uint32_t pages = 4 + rng.below(3);
  in.capacity = 1 + rng.below(3) + in.layers;  // a tail a layer
  for (PageId p = 0; p < pages; ++p) {
    in.add_page(0, p + in.layers < in.capacity);
    out.link.push_back(static_cast<LinkId>(2 * rng.below(tiers_below)));
    out.odds.push_back(static_cast<float>(between(rng, 0.1, 0.95)));
  }
  for (Tick t = 0; t < 10 * in.layers; ++t) {
    in.open_tick(20, 0, in.layers);
    for (PageId p = 0; p < pages; ++p) {
      const bool here = p % in.layers == t % in.layers;
      if (here && rng.uniform() < static_cast<double>(out.odds[p])) in.add_visit(p);
    }
  }
  return out;
}

namespace {

using Set = std::uint32_t;  // of pages

/// What a tick moves, each page over its own link.
placement::LayerLoad load_of(const Instance& in, std::span<const LinkId> link, Tick t,
                             std::uint32_t hbm, Set crossing) {
  if (link.empty()) return in.load(t, hbm, static_cast<std::uint32_t>(std::popcount(crossing)));
  placement::LayerLoad out = in.load(t, hbm, 0);
  for (PageId p = 0; p < in.pages(); ++p) {
    if ((crossing >> p & 1) != 0) out.link[link[p]].add(in.page_bytes);
  }
  return out;
}

class Solver {
 public:
  Solver(const Instance& instance, std::span<const LinkId> link, const ExactOptions& options)
      : in_(instance), link_(link), options_(options), all_(Set{1} << instance.pages()) {}

  Seconds solve() {
    constexpr Seconds kNot = std::numeric_limits<Seconds>::infinity();
    std::vector<Seconds> best(all_, kNot);
    best[0] = 0;
    for (Tick t = 0; t < in_.ticks(); ++t) {
      std::vector<Seconds> after(all_, kNot);
      for (Set held = 0; held < all_; ++held) {
        if (best[held] < kNot) layer(t, held, best[held], after);
      }
      // Dropping after the layer is free, of any pages.
      for (PageId p = 0; p < in_.pages(); ++p) {
        for (Set s = 0; s < all_; ++s) {
          if ((s >> p & 1) != 0)
            after[s ^ (Set{1} << p)] = std::min(after[s ^ (Set{1} << p)], after[s]);
        }
      }
      best = std::move(after);
    }
    return *std::min_element(best.begin(), best.end());
  }

 private:
  void layer(Tick t, Set held, Seconds before, std::vector<Seconds>& after) {
    Set selected = 0;
    Set alive = 0;
    Set born = 0;
    for (const PageId p : in_.visits_at(t)) selected |= Set{1} << p;
    for (PageId p = 0; p < in_.pages(); ++p) {
      if (in_.birth[p] <= t) alive |= Set{1} << p;
      if (in_.birth[p] == t && in_.born_in_hbm[p] != 0) born |= Set{1} << p;
    }
    const Set hits = selected & (held | born);
    const Set missed = selected & ~hits;
    // Earlier drops happened after an earlier layer; only the newly born can be dropped now.
    for (Set dropped = born & ~selected;; dropped = (dropped - 1) & born & ~selected) {
      const Set stay = (held | born) & ~dropped;
      const Set candidates = alive & ~stay & (options_.promotions ? ~Set{0} : missed);
      for (Set arrive = candidates;; arrive = (arrive - 1) & candidates) {
        const auto slots = static_cast<std::uint32_t>(std::popcount(stay | arrive)) + in_.pinned[t];
        if (slots <= in_.capacity) {
          const auto hbm = static_cast<std::uint32_t>(std::popcount(hits) + std::popcount(arrive));
          Seconds time = before;
          if (t >= options_.from) {
            const auto load = load_of(in_, link_, t, hbm, missed | arrive);
            time += placement::layer_time(*in_.platform, load).total();
          }
          after[stay | arrive] = std::min(after[stay | arrive], time);
        }
        if (arrive == 0) break;
      }
      if (dropped == 0) break;
    }
  }

  const Instance& in_;
  std::span<const LinkId> link_;
  const ExactOptions options_;
  const Set all_;
};

}  // namespace

Seconds exact_optimum(const Instance& instance, const ExactOptions& options) {
  return Solver(instance, {}, options).solve();
}

Seconds exact_optimum(const TinyReplay& replay) {
  return Solver(replay.instance, replay.link, {}).solve();
}

namespace {

/// The columns a policy sees.
struct Table {
  std::vector<Residency> residency;
  std::vector<std::uint16_t> guard, layer, sequence;
  std::vector<std::uint32_t> position;

  PageColumns columns() const { return {residency, guard, position, layer, sequence}; }
};

Tick next_visit(const Instance& in, PageId page, Tick from) {
  for (Tick t = from; t < in.ticks(); ++t) {
    const auto visits = in.visits_at(t);
    if (std::find(visits.begin(), visits.end(), page) != visits.end()) return t;
  }
  return kNever;
}

class Play {
 public:
  Play(const Instance& instance, std::span<const LinkId> link, std::span<const float> odds,
       placement::Policy& policy)
      : in_(instance), link_(link), odds_(odds.begin(), odds.end()), policy_(policy) {
    if (!odds_.empty()) odds_.push_back(0);              // of the tail
    const std::size_t n = in_.pages() + std::size_t{1};  // the last is the tail of the only group
    table_.residency.assign(n, 0);
    table_.guard.assign(n, 1);  // not there yet
    table_.layer.assign(n, 0);
    table_.sequence.assign(n, 0);
    table_.position.resize(n);
    for (std::size_t p = 0; p < n; ++p) table_.position[p] = static_cast<std::uint32_t>(p);
  }

  PlayedReplay run() {
    policy_.begin({in_.platform, in_.capacity, in_.page_bytes, in_.layers, 1, 7});
    for (Tick t = 0; t < in_.ticks() && out_.broken.empty(); ++t) {
      births(t);
      tick(t);
    }
    return out_;
  }

 private:
  bool in_hbm(PageId p) const { return resident(table_.residency[p], kHbm); }
  void set(PageId p, bool here) {
    table_.residency[p] =
        static_cast<Residency>(here ? table_.residency[p] | 1U : table_.residency[p] & ~1U);
  }
  std::uint32_t held() const {
    return static_cast<std::uint32_t>(std::count_if(table_.residency.begin(),
                                                    table_.residency.end(),
                                                    [](Residency r) { return resident(r, kHbm); }));
  }

  void births(Tick t) {
    std::vector<PageId> pages;
    std::vector<Tick> uses;
    for (PageId p = 0; p < in_.pages(); ++p) {
      if (in_.birth[p] != t) continue;
      const TierId below = link_.empty() ? in_.platform->home : in_.platform->links[link_[p]].from;
      table_.residency[p] = tier_bit(below);
      if (in_.born_in_hbm[p] != 0) set(p, true);
      table_.guard[p] = 0;
      pages.push_back(p);
      uses.push_back(next_visit(in_, p, t));
    }
    if (!pages.empty()) policy_.add_pages(pages, uses, table_.columns());
  }

  /// The pages that exist, and the tail.
  std::vector<PageId> context(Tick t) const {
    std::vector<PageId> out;
    for (PageId p = 0; p < in_.pages(); ++p) {
      if (in_.birth[p] <= t) out.push_back(p);
    }
    out.push_back(in_.pages());
    return out;
  }

  void tick(Tick t) {
    const auto visits = in_.visits_at(t);
    std::vector<std::uint8_t> hit;
    std::vector<PageId> missed;
    std::vector<Tick> next;
    for (const PageId p : visits) {
      hit.push_back(in_hbm(p) ? 1 : 0);
      if (!in_hbm(p)) missed.push_back(p);
      next.push_back(next_visit(in_, p, t + 1));
      ++table_.guard[p];
    }
    LayerView view;
    view.step = t / in_.layers;
    view.layer = t % in_.layers;
    view.layers = in_.layers;
    view.tick = t;
    view.selected = visits;
    view.hit = hit;
    view.missed = missed;
    view.next_use = next;
    const std::vector<PageId> blocks = context(t);
    const GroupView group{.blocks = blocks, .count = static_cast<std::uint32_t>(visits.size())};
    view.groups = std::span<const GroupView>(&group, 1);
    view.capacity = in_.capacity;
    const std::uint32_t taken = held() + in_.pinned[t];
    view.free_slots = taken < in_.capacity ? in_.capacity - taken : 0;
    view.must_free = taken > in_.capacity ? taken - in_.capacity : 0;
    view.pages = table_.columns();
    view.odds = odds_;
    LayerPlan plan;
    policy_.decide(view, plan);
    if (const Status ok = placement::check_plan(view, plan); !ok) {
      out_.broken = ok.error().what;
      return;
    }
    apply(t, view, plan);
    for (const PageId p : visits) --table_.guard[p];
  }

  void apply(Tick t, const LayerView& view, const LayerPlan& plan) {
    for (const PageId p : plan.drop) set(p, false);
    for (const PageId p : plan.install) set(p, true);
    for (const Promotion& m : plan.promote) set(m.page, true);
    if (held() + in_.pinned[t] > in_.capacity) out_.broken = "over capacity";
    const auto hits = static_cast<std::uint32_t>(view.selected.size() - view.missed.size());
    const auto installs = static_cast<std::uint32_t>(plan.install.size());
    const auto promotions = static_cast<std::uint32_t>(plan.promote.size());
    const auto misses = static_cast<std::uint32_t>(view.missed.size());
    Set crossing = 0;
    for (const PageId p : view.missed) crossing |= Set{1} << p;
    for (const Promotion& m : plan.promote) crossing |= Set{1} << m.page;
    const auto load = load_of(in_, link_, t, hits + installs + promotions, crossing);
    out_.total += placement::layer_time(*in_.platform, load).total();
    out_.misses += misses;
    out_.promotions += promotions;
    for (const PageId p : plan.drop_after) set(p, false);
  }

  const Instance& in_;
  std::span<const LinkId> link_;
  std::vector<float> odds_;
  placement::Policy& policy_;
  Table table_;
  PlayedReplay out_;
};

}  // namespace

PlayedReplay play(const Instance& instance, placement::Policy& policy) {
  return Play(instance, {}, {}, policy).run();
}

PlayedReplay play(const TinyReplay& replay, placement::Policy& policy) {
  return Play(replay.instance, replay.link, replay.odds, policy).run();
}

}  // namespace lehr::test
