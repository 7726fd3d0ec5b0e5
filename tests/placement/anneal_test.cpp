// SPDX-License-Identifier: Apache-2.0
#include "placement/anneal.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

constexpr Bytes kPage = 16 * kKiB;

struct Instance {
  std::vector<MarginalPage> pages;
  std::vector<MissCost> cost;
  std::vector<double> misses;
  Seconds promotion = 0;

  AnnealProblem problem() const { return {pages, cost, misses, promotion}; }
};

Instance random_instance(std::uint64_t seed, std::uint32_t pages, std::uint32_t layers) {
  Rng rng(seed);
  Instance out;
  out.cost.assign(layers, MissCost(test::small_platform(), kPage, 5e-7));
  for (std::uint32_t l = 0; l < layers; ++l) out.misses.push_back(2 * rng.uniform());
  for (std::uint32_t i = 0; i < pages; ++i) {
    out.pages.push_back({static_cast<float>(rng.uniform()),
                         static_cast<std::uint16_t>(rng.below(layers)), rng.below(2) == 0, i});
  }
  out.promotion = 1e-8 * rng.uniform();
  return out;
}

/// The predicted time of a set of residents, added up from nothing.
double time_of(const Instance& in, const std::vector<bool>& in_hbm) {
  std::vector<double> misses = in.misses;
  double total = 0;
  for (std::size_t i = 0; i < in.pages.size(); ++i) {
    if (!in_hbm[i]) misses[in.pages[i].layer] += static_cast<double>(in.pages[i].odds);
    if (in_hbm[i] && !in.pages[i].in_hbm) total += in.promotion;
  }
  for (std::size_t l = 0; l < misses.size(); ++l) total += in.cost[l].at(misses[l]);
  return total;
}

std::vector<bool> start_of(const Instance& in) {
  std::vector<bool> out;
  for (const MarginalPage& p : in.pages) out.push_back(p.in_hbm);
  return out;
}

double optimum(const Instance& in) {
  std::size_t places = 0;
  for (const MarginalPage& p : in.pages) places += p.in_hbm ? 1 : 0;
  double best = std::numeric_limits<double>::infinity();
  for (std::uint32_t set = 0; set < 1U << in.pages.size(); ++set) {
    if (static_cast<std::size_t>(__builtin_popcount(set)) != places) continue;
    std::vector<bool> chosen;
    for (std::size_t i = 0; i < in.pages.size(); ++i) chosen.push_back((set >> i & 1) != 0);
    best = std::min(best, time_of(in, chosen));
  }
  return best;
}

AnnealResult solved(const Instance& in, const AnnealSchedule& schedule) {
  Annealer annealer;
  AnnealResult result;
  REQUIRE(annealer.run(in.problem(), schedule, result));
  return result;
}

std::vector<bool> applied(const Instance& in, const AnnealResult& result) {
  std::vector<bool> state = start_of(in);
  for (const std::uint32_t i : result.in) {
    REQUIRE_FALSE(state[i]);
    state[i] = true;
  }
  for (const std::uint32_t i : result.out) {
    REQUIRE(in.pages[i].in_hbm);
    state[i] = false;
  }
  return state;
}

TEST_CASE("The cost of no misses is what hides them, of many the link's") {
  const Platform p = test::small_platform();
  const MissCost cost(p, kPage, 5e-7);
  CHECK(cost.at(0) == Approx(5e-7));
  // Poisson of mean 1/2: no miss with e^-0.5, else 1 us + n pages at 50 GB/s.
  double expected = std::exp(-0.5) * 5e-7;
  double probability = std::exp(-0.5);
  for (int n = 1; n < 30; ++n) {
    probability *= 0.5 / n;
    expected += probability * (1e-6 + n * double{kPage} / 50e9);
  }
  CHECK(cost.at(0.5) == Approx(expected).epsilon(1e-9));
  // Far out the start of the transfer is paid in any case: another page costs its bytes.
  CHECK(cost.price(60) == Approx(kPage / 50e9).epsilon(1e-6));
  CHECK(cost.price(5000) == Approx(kPage / 50e9).epsilon(1e-6));
  // And the first miss costs the start as well, where nothing hides it.
  CHECK(MissCost(p, kPage, 0).price(0) > 1.5 * cost.price(60));
}

TEST_CASE("LB <= OPT <= every plan: annealing is never above its start, never below the optimum") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 41));
  const Instance in = random_instance(seed, 10, 3);
  AnnealSchedule schedule;
  schedule.proposals = GENERATE(1, 50, 20000);
  schedule.per_temperature = 200;
  schedule.seed = seed;
  const AnnealResult result = solved(in, schedule);
  const double start = time_of(in, start_of(in));
  const double best = optimum(in);
  CHECK(result.before == Approx(start));
  CHECK(result.after <= result.before);
  CHECK(result.in.size() == result.out.size());
  const double reached = time_of(in, applied(in, result));
  CHECK(reached == Approx(result.after));
  CHECK(reached >= best * (1 - 1e-12));
  if (schedule.proposals == 20000) CHECK(reached <= best + 0.05 * (start - best) + 1e-15);
}

TEST_CASE(
    "The best state seen is returned, not the last: hot annealing ends no worse than it began") {
  const Instance in = random_instance(7, 40, 4);
  AnnealSchedule hot;
  hot.proposals = 5000;
  hot.start_temperature = 1;  // seconds: everything is accepted to the end
  hot.cooling = 1;
  const AnnealResult result = solved(in, hot);
  CHECK(result.accepted == result.proposals);
  CHECK(result.after <= result.before);
}

TEST_CASE("The same seed gives the same plan, another seed another way") {
  const Instance in = random_instance(11, 400, 8);
  AnnealSchedule schedule;
  schedule.proposals = 3000;
  schedule.seed = 5;
  const AnnealResult a = solved(in, schedule);
  const AnnealResult b = solved(in, schedule);
  CHECK(a.in == b.in);
  CHECK(a.out == b.out);
  CHECK(a.accepted == b.accepted);
  schedule.seed = 6;
  CHECK(solved(in, schedule).in != a.in);
}

TEST_CASE("A dear promotion is not made, a free one is") {
  Instance in;
  in.cost.assign(1, MissCost(test::small_platform(), kPage, 0));
  in.misses = {20};
  in.pages = {{0.1F, 0, true, 0}, {0.9F, 0, false, 1}};
  CHECK(solved(in, {}).in == std::vector<std::uint32_t>{1});
  in.promotion = 1;
  CHECK(solved(in, {}).in.empty());
}

TEST_CASE("The box of proposals is kept, and little gain ends a run before it") {
  const Instance in = random_instance(3, 100, 4);
  AnnealSchedule schedule;
  schedule.proposals = 1234;
  schedule.patience = 1'000'000;
  CHECK(solved(in, schedule).proposals == 1234);
  schedule.proposals = 1'000'000;
  schedule.patience = 2000;
  CHECK(solved(in, schedule).proposals < 500'000);
}

TEST_CASE("Nothing inside or nothing outside: nothing to do") {
  Instance in;
  in.cost.assign(1, MissCost(test::small_platform(), kPage, 0));
  in.misses = {1};
  CHECK(solved(in, {}).proposals == 0);
  in.pages = {{0.5F, 0, true, 0}};
  CHECK(solved(in, {}).in.empty());
  in.pages = {{0.5F, 0, false, 0}};
  CHECK(solved(in, {}).in.empty());
}

TEST_CASE("Bad input is refused with a reason") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Instance in = random_instance(1, 4, 2);
  Annealer annealer;
  AnnealResult result;
  const auto refuses = [&](const Instance& bad, const AnnealSchedule& schedule) {
    const Status status = annealer.run(bad.problem(), schedule, result);
    return !status && !status.error().what.empty();
  };
  CHECK_FALSE(refuses(in, {}));  // control
  Instance bad = in;
  bad.pages[2].odds = nan;
  CHECK(refuses(bad, {}));
  bad.pages[2].odds = 1.5F;
  CHECK(refuses(bad, {}));
  bad = in;
  bad.pages[0].layer = 2;
  CHECK(refuses(bad, {}));
  bad = in;
  bad.misses[0] = static_cast<double>(nan);
  CHECK(refuses(bad, {}));
  bad = in;
  bad.misses.pop_back();
  CHECK(refuses(bad, {}));
  bad = in;
  bad.promotion = -1;
  CHECK(refuses(bad, {}));
  AnnealSchedule schedule;
  schedule.cooling = 1.5;
  CHECK(refuses(in, schedule));
  schedule = {};
  schedule.per_temperature = 0;
  CHECK(refuses(in, schedule));
}

}  // namespace
}  // namespace lehr::placement
