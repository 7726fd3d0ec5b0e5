// SPDX-License-Identifier: Apache-2.0
#include "placement/oracle.hpp"

#include <cmath>

#include "catch2/catch.hpp"
#include "kernels/base/rng.hpp"
#include "placement/bounds.hpp"
#include "placement/oracle/ledger.hpp"
#include "placement/oracle/router.hpp"
#include "placement/oracle/starts.hpp"
#include "tests/support/exact_solver.hpp"

namespace lehr::placement {
namespace {

using test::TinyReplay;

/// Pages 0 and 1 are read in turn, in four steps of one layer; one slot, page 0 starts in it.
TinyReplay two_pages_one_slot() {
  TinyReplay out = test::empty_replay(1000, 100, 1);
  out.instance.add_page(0, true);
  out.instance.add_page(0, false);
  for (Tick t = 0; t < 4; ++t) {
    out.instance.open_tick(0, 0, 0);
    out.instance.add_visit(t % 2);
  }
  return out;
}

TEST_CASE("a schedule's time, by hand") {
  const TinyReplay replay = two_pages_one_slot();
  const VisitChains chains = visit_chains(replay.instance);
  REQUIRE(chains.tick == std::vector<Tick>{0, 2, 1, 3});
  const auto total = [&](const Schedule& s) {
    const auto time = schedule_time(replay.instance, chains, s, 1);
    REQUIRE(time);
    return *time;
  };
  // Page 0 stays: two hits of 0.1 s, two crossings of 1 s.
  const ScheduleTime kept = total({kKept, kKept, kReadInPlace, kReadInPlace});
  CHECK(kept.total == Approx(2.2));
  CHECK(kept.without_warmup == Approx(2.1));
  // Page 1 is promoted in tick 2, beside the crossing of page 0's read, which may not stay.
  CHECK(total({kKept, kReadInPlace, kReadInPlace, 2}).total == Approx(0.1 + 1 + 2 + 0.1));
  // Page 1's read in tick 1 installs it.
  CHECK(total({kKept, kReadInPlace, kReadInPlace, kKept}).total == Approx(0.1 + 1 + 1 + 0.1));
}

TEST_CASE("what is no schedule is refused") {
  const TinyReplay replay = two_pages_one_slot();
  const VisitChains chains = visit_chains(replay.instance);
  const auto refused = [&](const Schedule& s, const std::string& why) {
    const auto time = schedule_time(replay.instance, chains, s);
    REQUIRE_FALSE(time);
    CHECK_THAT(time.error().what, Catch::Contains(why));
  };
  refused({kKept, kKept, kReadInPlace, kKept}, "2 pages and 0 tails for 1 slots, tick 1");
  refused({kKept, kReadInPlace, kKept, kReadInPlace}, "kept, but in HBM it was not");
  refused({kReadInPlace, kReadInPlace, kReadInPlace, kReadInPlace}, "tick of its birth");
  refused({kKept, 2, kReadInPlace, kReadInPlace}, "promoted outside");
  refused({kKept, 0, kReadInPlace, kReadInPlace}, "promoted outside");
  refused({kKept}, "one way for each visit");
}

/// Any schedule, mostly nonsense.
Schedule random_schedule(const TinyReplay& replay, const VisitChains& chains, Rng& rng) {
  Schedule out;
  for (std::size_t i = 0; i < chains.tick.size(); ++i) {
    const std::uint32_t die = rng.below(4);
    out.push_back(die == 0 ? kReadInPlace : die < 3 ? kKept : rng.below(replay.instance.ticks()));
  }
  return out;
}

TEST_CASE(
    "bound, optimum, oracle, any plan: each at most the next, on hundreds of random replays") {
  int replays = 0;
  int schedules = 0;
  int optimal = 0;
  int improved = 0;
  int promoting = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    const Seconds optimum = test::exact_optimum(in);
    if (!std::isfinite(optimum)) continue;
    ++replays;
    const VisitChains chains = visit_chains(in);
    OracleOptions options;
    options.seed = seed;
    const auto oracle = oracle_plan(in, options);
    REQUIRE(oracle);
    const Seconds time = oracle->predicted.total;
    CHECK(time >= optimum * (1 - 1e-12));
    CHECK(time <= oracle->greedy);
    optimal += time <= optimum * (1 + 1e-9) ? 1 : 0;
    improved += time < 0.999 * oracle->greedy ? 1 : 0;

    // The step loop's own figure is the evaluator's.
    const auto policy = planned_policy(in, chains, oracle->schedule);
    const test::PlayedReplay played = test::play(in, *policy);
    CHECK(played.broken == "");
    CHECK(played.total == Approx(time).epsilon(1e-12));
    promoting += played.promotions > 0 ? 1 : 0;

    Rng rng(seed);
    for (int k = 0; k < 30; ++k) {
      const Schedule any = random_schedule(replay, chains, rng);
      const auto any_time = schedule_time(in, chains, any);
      if (!any_time) continue;
      ++schedules;
      CHECK(any_time->total >= optimum * (1 - 1e-12));
      const auto any_policy = planned_policy(in, chains, any);
      const test::PlayedReplay any_played = test::play(in, *any_policy);
      CHECK(any_played.broken == "");
      CHECK(any_played.total == Approx(any_time->total).epsilon(1e-12));
    }
  }
  // Controls: there was something to compare, to improve and to promote; and the oracle is good.
  CHECK(replays > 330);
  CHECK(schedules > 500);
  CHECK(improved > 50);
  CHECK(promoting > 20);
  CHECK(optimal > replays * 3 / 5);
}

TEST_CASE("no policy beats the optimum") {
  for (const PolicyDescriptor* descriptor : policies()) {
    if (descriptor->traits.unlimited) continue;
    INFO(descriptor->name);
    int replays = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      INFO("seed " << seed);
      const TinyReplay replay = test::random_replay(seed);
      const Seconds optimum = test::exact_optimum(replay.instance);
      if (!std::isfinite(optimum)) continue;
      auto policy = make_policy(descriptor->name, {});
      REQUIRE(policy);
      const test::PlayedReplay played = test::play(replay.instance, **policy);
      // A policy may find itself with more pinned than fits; that is no plan.
      if (!played.broken.empty()) continue;
      ++replays;
      CHECK(played.total >= optimum * (1 - 1e-12));
    }
    CHECK(replays > 30);
  }
}

TEST_CASE("fewest misses is as good as trying every set of kept intervals") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    if (!std::isfinite(test::exact_optimum(replay.instance))) continue;
    const Instance& in = replay.instance;
    const VisitChains chains = visit_chains(in);
    if (chains.tick.size() > 12) continue;
    std::size_t best = chains.tick.size();
    for (std::uint32_t kept = 0; kept < (1U << chains.tick.size()); ++kept) {
      Schedule s;
      for (std::size_t i = 0; i < chains.tick.size(); ++i) {
        s.push_back((kept >> i & 1) != 0 ? kKept : kReadInPlace);
      }
      if (!schedule_time(in, chains, s)) continue;
      best = std::min(best, static_cast<std::size_t>(std::count(s.begin(), s.end(), kReadInPlace)));
    }
    const Schedule found = fewest_misses(in, chains);
    CHECK(schedule_time(in, chains, found));
    CHECK(static_cast<std::size_t>(std::count(found.begin(), found.end(), kReadInPlace)) == best);
    CHECK(schedule_time(in, chains, greedy_density(in, chains)));
  }
}

TEST_CASE("the ledger's times and marginal costs are the model's") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    const TinyReplay replay = test::random_replay(seed);
    const Instance& in = replay.instance;
    Ledger ledger(in);
    const auto time = [&](Tick t, std::uint32_t hbm, std::uint32_t crossings) {
      return layer_time(*in.platform, in.load(t, hbm, crossings)).total();
    };
    Rng rng(seed);
    Seconds total = 0;
    for (Tick t = 0; t < in.ticks(); ++t) {
      const std::uint32_t h = rng.below(5);
      const std::uint32_t c = rng.below(5);
      ledger.add(t, static_cast<int>(h) + 2, static_cast<int>(c) + 1);
      ledger.add(t, -2, -1);
      CHECK(ledger.read(t) == Approx(time(t, h + 1, c) - time(t, h, c)).margin(1e-12));
      CHECK(ledger.cross(t) == Approx(time(t, h, c + 1) - time(t, h, c)).margin(1e-12));
      CHECK(ledger.bring(t) == Approx(time(t, h + 1, c + 1) - time(t, h, c)).margin(1e-12));
      total += time(t, h, c);
    }
    CHECK(ledger.total(0) == Approx(total));
  }
}

TEST_CASE("crossings of a tick move as one to an earlier burst, where the start is dear") {
  // Page by page nothing is won: the second tick's start is paid for either page.
  TinyReplay replay = test::two_bursts();
  Instance& in = replay.instance;
  const VisitChains chains = visit_chains(in);
  Router router(in, chains, Schedule(4, kReadInPlace));
  CHECK(router.ledger().total(0) == Approx(2 * 1.02));
  const std::vector<Seconds> price(2, 1e-3);  // of a slot: else a page would move for nothing
  for (PageId p = 0; p < 4; ++p) router.reroute(p, {price, 0, nullptr});
  CHECK(router.ledger().total(0) == Approx(2 * 1.02));  // control: page by page
  router.merge_crossings(4);
  CHECK(router.ledger().total(0) == Approx(1.04 + 0.0002));
  const auto time = schedule_time(in, chains, router.schedule(), 0);
  REQUIRE(time);
  CHECK(time->total == Approx(router.ledger().total(0)));

  in.capacity = 1;  // no room for both: all stays as it is
  Router tight(in, chains, Schedule(4, kReadInPlace));
  tight.merge_crossings(4);
  CHECK(tight.ledger().total(0) == Approx(2 * 1.02));
}

TEST_CASE("the same seed gives the same oracle, several seeds give a spread") {
  const TinyReplay replay = test::random_replay(11);
  OracleOptions options;
  options.seeds = 5;
  const auto a = oracle_plan(replay.instance, options);
  const auto b = oracle_plan(replay.instance, options);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->schedule == b->schedule);
  CHECK(a->by_seed == b->by_seed);
  CHECK(a->by_seed.size() == 5);
  CHECK(a->predicted.total <= *std::min_element(a->by_seed.begin(), a->by_seed.end()));
}

}  // namespace
}  // namespace lehr::placement
