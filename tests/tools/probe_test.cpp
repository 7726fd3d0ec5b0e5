// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/probe.hpp"

#include <catch2/catch.hpp>

using namespace lehr;
using namespace lehr::tools;

namespace {

/// What the grid of a link with one bandwidth and one latency would be timed as.
TimedGrid timed(double bytes_per_second, double latency) {
  TimedGrid grid{{4096, 65536, 1048576}, {1, 16, 256}, {}};
  for (const double size : grid.sizes) {
    for (const double count : grid.counts) {
      grid.seconds.push_back(latency + size * count / bytes_per_second);
    }
  }
  return grid;
}

config::Profile h200() {
  auto profile = config::read_profile("h200-pcie5");
  REQUIRE(profile);
  return *std::move(profile);
}

}  // namespace

TEST_CASE("A link's latency and bandwidth come apart from timed transfers") {
  const auto [curve, latency] = curve_of(timed(50e9, 10e-6));
  // The peak is taken from the largest transfer, 256 MiB in 5.4 ms, whose latency is 0.2 %.
  CHECK(latency == Approx(10e-6).epsilon(0.01));
  CHECK(curve.at(1048576, 256) == Approx(50e9).epsilon(0.01));
  CHECK(curve.at(65536, 16) == Approx(50e9).epsilon(0.01));
  // Where latency is nearly all of the time, no more than four times what was seen.
  const double seen = 4096 / (10e-6 + 4096 / 50e9);
  CHECK(curve.at(4096, 1) <= 4 * seen * 1.001);
  CHECK(curve.peak() <= 50e9);  // no more than a whole transfer reached
}

TEST_CASE("A link without latency has none, and slow small transfers are slow") {
  TimedGrid grid = timed(10e9, 0);
  grid.seconds[1] *= 3;  // 16 of 4 KiB
  const auto [curve, latency] = curve_of(grid);
  CHECK(latency == Approx(0).margin(1e-9));
  CHECK(curve.at(4096, 16) == Approx(10e9 / 3));
}

TEST_CASE("A machine that is as its profile says shows no drift") {
  ProbeResult now;
  now.profile = h200();
  now.measured = {"hbm", "h2d", "d2h"};
  const auto drifts = compare_profiles(h200(), now);
  REQUIRE(drifts.size() > 10);
  for (const Drift& d : drifts) CHECK(d.ratio() == Approx(1.0));
}

TEST_CASE("What was not measured is not compared, and a slower link is named") {
  ProbeResult now;
  now.profile = h200();
  now.measured = {"h2d"};
  for (placement::Link& link : now.profile.platform.links) {
    link.curve = BandwidthCurve(link.curve.peak() / 2);
  }
  now.profile.movers.clear();  // then links are compared, point by point
  bool found = false;
  for (const Drift& d : compare_profiles(h200(), now)) {
    CHECK((d.what.find("h2d") != std::string::npos));
    found = found || (d.what == "h2d at best" && d.ratio() == Approx(0.5));
  }
  CHECK(found);
}

TEST_CASE("Movers are compared by what the fastest of them takes, whole calls") {
  ProbeResult now;
  now.profile = h200();
  now.measured = {"h2d"};
  // A mover that is not the fastest anywhere may be as slow as it likes.
  now.profile.movers.push_back({"h2d", "another", 1, 1.0, BandwidthCurve(1e6)});
  const auto drifts = compare_profiles(h200(), now);
  REQUIRE(drifts.size() > 40);
  bool runs = false;
  for (const Drift& d : drifts) {
    INFO(d.what);
    CHECK(d.ratio() == Approx(1.0));
    runs = runs || d.what.find("in runs of 16") != std::string::npos;
  }
  CHECK(runs);
  // All of them slower by a third: so is every figure but the link's own.
  for (transfer::MoverCurve& m : now.profile.movers) {
    m.latency *= 1.5;
    std::vector<double> slower = m.curve.values();
    for (double& v : slower) v /= 1.5;
    m.curve = BandwidthCurve(m.curve.sizes(), m.curve.counts(), std::move(slower));
  }
  for (const Drift& d : compare_profiles(h200(), now)) {
    INFO(d.what);
    if (d.what.find(" x ") != std::string::npos) CHECK(d.ratio() == Approx(1 / 1.5));
  }
}

TEST_CASE("Putting a tier or link in keeps the ids of what was there") {
  ProbeResult result;
  result.profile = h200();
  placement::Platform& platform = result.profile.platform;
  const std::size_t tiers = platform.tiers.size(), links = platform.links.size();
  placement::Tier peer;
  peer.name = "peer";
  peer.capacity = kGiB;
  const TierId id = put_tier(platform, peer);
  CHECK(id == tiers);
  CHECK(put_tier(platform, peer) == id);
  placement::Link link;
  link.name = "another name";
  link.from = platform.home;
  link.to = kHbm;
  link.curve = BandwidthCurve(1e9);
  put_link(result, link);
  CHECK(platform.links.size() == links);
  CHECK(platform.links[platform.link(platform.home, kHbm)].name == "h2d");
  link.from = id;
  put_link(result, link);
  CHECK(platform.links.size() == links + 1);
  CHECK(result.measured == std::vector<std::string>{"h2d", "another name"});
  CHECK(config::parse_profile(config::write_profile(result.profile), "written"));
}
