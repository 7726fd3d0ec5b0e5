// SPDX-License-Identifier: Apache-2.0
// Shares of HBM against exhaustion: never worse than the start, never over capacity, the same for
// the same seed, and better where one threshold for all is a poor choice.
#include "placement/shares.hpp"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "placement/greedy_shares.hpp"
#include "tests/support/policy_world.hpp"

namespace lehr::placement {
namespace {

constexpr Bytes kPage = 16 * kKiB;

/// A link on which the first page costs as much as fifty more.
Platform start_is_dear() {
  Platform p = test::small_platform();
  Link& up = p.links[p.link(p.home, kHbm)];
  up.curve = BandwidthCurve(100e9);
  up.latency = 50 * kPage / 100e9;
  return p;
}

struct Case {
  std::vector<OddsHistogram> groups;
  std::vector<Share> shares;
  std::uint32_t layers = 0;
  std::uint64_t capacity = 0;

  std::uint64_t held(const std::vector<Share>& of) const {
    std::uint64_t n = 0;
    for (const Share& s : of) {
      for (std::uint32_t b = s.least; b < OddsHistogram::kBins; ++b) n += groups[s.group].pages(b);
    }
    return n;
  }
  Seconds time(const std::vector<Share>& of, const MissCost& cost) const {
    std::vector<double> misses(layers, 0.0);
    for (const Share& s : of) {
      for (std::uint32_t b = 0; b < s.least; ++b) misses[s.layer] += groups[s.group].odds(b);
    }
    Seconds sum = 0;
    for (const double m : misses) sum += cost.at(m);
    return sum;
  }
};

Case random_case(std::uint64_t seed, std::uint32_t layers, std::uint32_t sequences) {
  Rng rng(seed);
  Case out;
  out.layers = layers;
  std::uint64_t pages = 0;
  for (std::uint32_t l = 0; l < layers; ++l) {
    for (std::uint32_t s = 0; s < sequences; ++s) {
      const auto group = static_cast<std::uint32_t>(out.groups.size());
      out.groups.emplace_back();
      out.shares.push_back({group, l, OddsHistogram::kBins});
      const std::uint32_t n = 1 + rng.below(40);
      for (std::uint32_t i = 0; i < n; ++i) {
        const double u = rng.uniform();
        out.groups.back().add(static_cast<float>(u * u * u));
      }
      pages += n;
    }
  }
  out.capacity = rng.below(static_cast<std::uint32_t>(pages) + 1);
  return out;
}

TEST_CASE("Shares: never over capacity, never worse than the start or a common threshold") {
  const MissCost cost(start_is_dear(), kPage, 0);
  ShareAnnealer annealer;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Case c = random_case(seed, static_cast<std::uint32_t>(1 + seed % 5),
                         static_cast<std::uint32_t>(1 + seed % 3));
    std::vector<Share> shares = c.shares;
    SharesResult result;
    for (int round = 0; round < 3; ++round) {  // each from where the last one ended
      const std::vector<Share> start = shares;
      REQUIRE(annealer.run(c.groups, cost, c.layers, c.capacity, 500, seed, shares, result));
      CHECK(result.after <= result.before);
      CHECK(result.before <= result.common);
      CHECK(c.held(shares) <= c.capacity);
      CHECK(c.time(shares, cost) == Approx(result.after).epsilon(1e-9));
      CHECK(c.time(shares, cost) <= c.time(start, cost) * (1 + 1e-12));
    }
  }
}

TEST_CASE("Shares: two layers that cannot both be without misses") {
  // Eight pages a layer, all read with odds of a half, room for eight. One threshold gives nobody
  // anything (all or none fit); the best is one layer whole, the other bare.
  const MissCost cost(start_is_dear(), kPage, 0);
  Case c;
  c.layers = 2;
  c.capacity = 8;
  for (std::uint32_t l = 0; l < 2; ++l) {
    c.groups.emplace_back();
    for (int i = 0; i < 8; ++i) c.groups.back().add(0.5F);
    c.shares.push_back({l, l, OddsHistogram::kBins});
  }
  ShareAnnealer annealer;
  SharesResult result;
  std::vector<Share> shares = c.shares;
  REQUIRE(annealer.run(c.groups, cost, 2, c.capacity, 5000, 1, shares, result));
  CHECK(result.common == Approx(2 * cost.at(4)));
  CHECK(result.after == Approx(cost.at(4) + cost.at(0)));
  CHECK(result.accepted > 0);
}

TEST_CASE(
    "Greedy shares: never over capacity, what they promise is their time, more room saves more") {
  const MissCost cost(start_is_dear(), kPage, 0);
  int better = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Case c = random_case(seed, static_cast<std::uint32_t>(1 + seed % 5),
                         static_cast<std::uint32_t>(1 + seed % 3));
    std::vector<Share> shares = c.shares;
    const auto time = greedy_shares(c.groups, cost, c.layers, c.capacity, shares);
    REQUIRE(time);
    CHECK(c.held(shares) <= c.capacity);
    CHECK(*time == Approx(c.time(shares, cost)).epsilon(1e-9));
    CHECK(*time <= c.time(c.shares, cost) * (1 + 1e-12));  // nothing held
    std::vector<Share> again = shares;                     // it starts anew, whatever it is given
    CHECK(*greedy_shares(c.groups, cost, c.layers, c.capacity, again) == *time);
    std::vector<Share> all = c.shares;
    CHECK(*greedy_shares(c.groups, cost, c.layers, 1000000, all) ==
          Approx(c.layers * cost.at(0)).margin(1e-12));
    std::vector<Share> annealed = c.shares;
    SharesResult result;
    REQUIRE(ShareAnnealer().run(c.groups, cost, c.layers, c.capacity, 0, 1, annealed, result));
    better += *time < result.common ? 1 : 0;
  }
  CHECK(better > 20);  // than one threshold for all
}

TEST_CASE("Greedy shares: a layer gets what makes it bare of misses, or nothing") {
  const MissCost cost(start_is_dear(), kPage, 0);
  Case c;
  c.layers = 2;
  for (std::uint32_t l = 0; l < 2; ++l) {
    c.groups.emplace_back();
    for (int i = 0; i < 8; ++i) c.groups.back().add(0.5F);
    c.shares.push_back({l, l, OddsHistogram::kBins});
  }
  const auto time = greedy_shares(c.groups, cost, 2, 8, c.shares);
  REQUIRE(time);
  CHECK(*time == Approx(cost.at(4) + cost.at(0)));
  c.shares[1].layer = 2;
  CHECK_FALSE(greedy_shares(c.groups, cost, 2, 8, c.shares));
}

TEST_CASE("Shares: the same seed gives the same shares, without proposals the start stays") {
  const MissCost cost(start_is_dear(), kPage, 0);
  const Case c = random_case(11, 6, 4);
  const auto run = [&](std::uint64_t seed, std::uint64_t proposals) {
    ShareAnnealer annealer;
    SharesResult result;
    std::vector<Share> shares = c.shares;
    REQUIRE(annealer.run(c.groups, cost, c.layers, c.capacity, proposals, seed, shares, result));
    std::vector<std::uint32_t> out;
    out.reserve(shares.size());
    for (const Share& s : shares) out.push_back(s.least);
    return out;
  };
  CHECK(run(1, 2000) == run(1, 2000));
  CHECK(run(1, 0) == run(2, 0));
  const auto common = run(1, 0);
  for (const std::uint32_t least : common) CHECK(least == common.front());
}

TEST_CASE("Shares: what does not exist is refused and nothing changes") {
  const MissCost cost(start_is_dear(), kPage, 0);
  const Case c = random_case(2, 2, 1);
  ShareAnnealer annealer;
  SharesResult result;
  for (const Share bad : {Share{9, 0, 1}, Share{0, 2, 1}, Share{0, 0, OddsHistogram::kBins + 1}}) {
    std::vector<Share> shares = c.shares;
    shares[0] = bad;
    CHECK_FALSE(annealer.run(c.groups, cost, 2, c.capacity, 100, 1, shares, result));
    CHECK(shares[0].least == bad.least);
  }
}

TEST_CASE("Bins of odds: no number and none above one gets out of range") {
  CHECK(OddsHistogram::bin(0) == 0);
  CHECK(OddsHistogram::bin(1) == OddsHistogram::kBins - 1);
  CHECK(OddsHistogram::bin(7) == OddsHistogram::kBins - 1);
  CHECK(OddsHistogram::bin(0.5F) == OddsHistogram::kBins - 1 - 8);
  CHECK(OddsHistogram::bin(std::numeric_limits<float>::quiet_NaN()) == OddsHistogram::kBins - 1);
  CHECK(OddsHistogram::bin(-1) == 0);
}

}  // namespace
}  // namespace lehr::placement
