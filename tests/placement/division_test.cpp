// SPDX-License-Identifier: Apache-2.0
#include "placement/division.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

using namespace lehr;
using namespace lehr::placement;

namespace {

using Units = std::vector<std::uint32_t>;

std::uint32_t sum(const Units& units) { return std::accumulate(units.begin(), units.end(), 0U); }

Seconds slowest(const std::vector<DeviceLoad>& loads, const Units& units) {
  Seconds most = 0;
  for (std::size_t d = 0; d < loads.size(); ++d)
    most = std::max(most, predicted_step(loads[d], units[d]));
  return most;
}

/// The least slowest part over all divisions, by trying each.
Seconds best(const std::vector<DeviceLoad>& loads, std::uint32_t units) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  Units tried;
  const std::function<void(std::uint32_t)> deal = [&](std::uint32_t left) {
    if (tried.size() + 1 == loads.size()) {
      tried.push_back(left);
      least = std::min(least, slowest(loads, tried));
      tried.pop_back();
      return;
    }
    const auto others = static_cast<std::uint32_t>(loads.size() - tried.size() - 1);
    for (std::uint32_t n = 1; n + others <= left; ++n) {
      tried.push_back(n);
      deal(left - n);
      tried.pop_back();
    }
  };
  deal(units);
  return least;
}

std::vector<DeviceLoad> random_loads(Rng& rng) {
  std::vector<DeviceLoad> loads(2 + rng.below(3));
  for (DeviceLoad& load : loads) {
    load.units = 1 + rng.below(6);
    load.hit_rate = rng.uniform();
    load.hbm = 4e12;
    load.link = rng.below(2) == 0 ? 50e9 : 375e9;
    load.step = 1e-4 + 1e-2 * rng.uniform();
  }
  return loads;
}

}  // namespace

TEST_CASE("units are divided by weight, and each device has one") {
  CHECK(*divide(8, std::vector<double>{1, 1}) == Units{4, 4});
  CHECK(*divide(8, std::vector<double>{3, 1}) ==
        Units{6, 2});  // 1 + 4.5, 1 + 1.5: ties to the first
  CHECK(*divide(3, std::vector<double>{100, 1, 1}) == Units{1, 1, 1});
  CHECK(*divide(10, std::vector<double>{1, 1, 1}) == Units{4, 3, 3});
  CHECK_FALSE(divide(2, std::vector<double>{1, 1, 1}));
  CHECK_FALSE(divide(2, {}));
  CHECK_FALSE(divide(4, std::vector<double>{1, 0}));
  CHECK_FALSE(divide(4, std::vector<double>{1, std::numeric_limits<double>::quiet_NaN()}));
}

TEST_CASE("a part's time follows what its HBM goes on serving") {
  // Half of 4 units from HBM at 100, half over a link at 10: 2 / 100 + 2 / 10 = 0.22.
  const DeviceLoad load{4, 0.22, 0.5, 100, 10};
  CHECK(predicted_step(load, 4) == Approx(0.22));
  CHECK(predicted_step(load, 2) == Approx(0.02));
  CHECK(predicted_step(load, 1) == Approx(0.01));
  CHECK(predicted_step(load, 6) == Approx(0.42));
}

TEST_CASE("units that find room in HBM are read there") {
  DeviceLoad load{4, 0.04, 1, 100, 10};
  CHECK(predicted_step(load, 6) == Approx(0.24));  // 0.01 each of four, 0.1 each of two
  const auto with_hits = [](double h) { return 6 * (h * 0.01 + (1 - h) * 0.1); };
  load.share = 1;  // HBM for four
  CHECK(predicted_step(load, 6) == Approx(with_hits(std::pow(4 / 6.0, kUnknownFall))));
  load.share = 1.25;  // for five
  CHECK(predicted_step(load, 6) == Approx(with_hits(std::pow(5 / 6.0, kUnknownFall))));
  load.share = 1.5;
  CHECK(predicted_step(load, 6) == Approx(0.06));
  CHECK(predicted_step(load, 4) == Approx(0.04));
}

TEST_CASE("a device that hits much with little HBM goes on doing so") {
  // A quarter of the bytes serves half of the reads: a sixteenth a quarter of them, all of them
  // all.
  const DeviceLoad load{4, 0.22, 0.5, 100, 10, 0.25};
  CHECK(predicted_step(load, 4) == Approx(0.22));
  CHECK(predicted_step(load, 16) == Approx(16 * (0.25 * 0.01 + 0.75 * 0.1)));
  CHECK(predicted_step(load, 1) == Approx(0.01));
  // Less than its share, as no policy would: taken for reads at random. Nothing hit: so it stays.
  const DeviceLoad poor{4, 0.22, 0.1, 100, 10, 0.25};
  CHECK(predicted_step(poor, 8) > 2 * predicted_step(poor, 4));
  const DeviceLoad none{4, 0.4, 0, 100, 10, 0.25};
  CHECK(predicted_step(none, 8) >= 2 * predicted_step(none, 4));
  // The slowest device of two gives up units that the other has room for, in its way of hitting.
  const std::vector<DeviceLoad> loads{{4, 0.22, 0.5, 100, 10, 0.25}, {4, 0.05, 0.97, 100, 10, 0.4}};
  CHECK(rebalanced(loads, {1, 0.05}) == Units{3, 5});
  std::vector<DeviceLoad> unknown = loads;
  for (DeviceLoad& device : unknown) device.share = 0;
  CHECK(predicted_step(loads[1], 6) < predicted_step(unknown[1], 6) / 2);
}

TEST_CASE("a device that misses gives units to one that does not") {
  const std::vector<DeviceLoad> loads{{4, 0.22, 0.5, 100, 10}, {4, 0.04, 1, 100, 100}};
  CHECK(rebalanced(loads, {1, 0.05}) == Units{3, 5});  // 0.12 and 0.05
  CHECK(rebalanced(loads, {8, 0.05}) == Units{2, 6});  // 0.02 and 0.06: a seventh would take longer
  CHECK(rebalanced(loads, {1, 0.5}) == Units{4, 4});   // 45 % is not worth it to this rule
  CHECK(rebalanced(loads, {0, 0.05}) == Units{4, 4});
}

TEST_CASE("rebalancing reaches the best division, and stays there") {
  Rng rng(5);
  int changed = 0;
  for (int round = 0; round < 400; ++round) {
    const std::vector<DeviceLoad> loads = random_loads(rng);
    CAPTURE(round);
    Units before;
    for (const DeviceLoad& load : loads) before.push_back(load.units);
    const Units after = rebalanced(loads, {100, 0});
    CHECK(sum(after) == sum(before));
    CHECK(*std::min_element(after.begin(), after.end()) >= 1);
    CHECK(slowest(loads, after) == Approx(best(loads, sum(before))));
    changed += after != before;
    // The same loads as they are then: nothing left to gain.
    std::vector<DeviceLoad> then = loads;
    for (std::size_t d = 0; d < then.size(); ++d) {
      const double served = loads[d].hit_rate * loads[d].units;
      then[d].step = predicted_step(loads[d], after[d]);
      then[d].units = after[d];
      then[d].hit_rate = std::min(1.0, served / after[d]);
    }
    CHECK(rebalanced(then, {100, 1e-9}) == after);
  }
  CHECK(changed > 100);
}

TEST_CASE("a few units at a time never make the slowest part slower, and arrive") {
  Rng rng(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<DeviceLoad> loads = random_loads(rng);
    const std::vector<DeviceLoad> first = loads;
    Units units;
    for (const DeviceLoad& load : loads) units.push_back(load.units);
    Seconds before = slowest(first, units);
    for (int turn = 0; turn < 100; ++turn) {
      const Units next = rebalanced(loads, {1, 0});
      if (next == units) break;
      std::uint32_t moved = 0;
      for (std::size_t d = 0; d < next.size(); ++d)
        moved += next[d] > units[d] ? next[d] - units[d] : 0;
      CHECK(moved == 1);
      units = next;
      for (std::size_t d = 0; d < loads.size(); ++d) {
        loads[d].step = predicted_step(first[d], units[d]);
        loads[d].hit_rate = std::min(1.0, first[d].hit_rate * first[d].units / units[d]);
        loads[d].units = units[d];
      }
      const Seconds now = slowest(first, units);
      CHECK(now <= before * (1 + 1e-12));
      before = now;
    }
  }
}

TEST_CASE("loads that cannot be change nothing") {
  const DeviceLoad good{4, 1, 1, 100, 100}, idle{4, 0.1, 1, 100, 100};
  for (const DeviceLoad& bad :
       {DeviceLoad{0, 1, 1, 100, 100}, DeviceLoad{4, 0, 1, 100, 100},
        DeviceLoad{4, 1, 1.5, 100, 100}, DeviceLoad{4, 1, 1, 0, 100}, DeviceLoad{4, 1, 1, 100, -1},
        DeviceLoad{4, std::numeric_limits<double>::infinity(), 1, 100, 100}}) {
    const std::vector<DeviceLoad> loads{good, idle, bad};
    CHECK(rebalanced(loads, {4, 0}) == Units{4, 4, bad.units});
  }
  CHECK(rebalanced(std::vector<DeviceLoad>{good, idle}, {4, 0}) != Units{4, 4});
  CHECK(rebalanced({}, {4, 0}).empty());
}
