// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/lane_movers.hpp"

#include <catch2/catch.hpp>

#include "runtime/config/profile.hpp"

using namespace lehr;
using namespace lehr::runtime::cuda;
using kernels::PagePair;

TEST_CASE("pages that follow each other at both ends are one run") {
  const std::vector<PagePair> pairs = {{100, 500}, {110, 510}, {120, 530}, {130, 540}, {90, 550}};
  const auto runs = runs_of(pairs, 10);
  REQUIRE(runs.size() == 3);
  CHECK((runs[0].from == 100 && runs[0].to == 500 && runs[0].bytes == 20));
  CHECK((runs[1].from == 120 && runs[1].to == 530 && runs[1].bytes == 20));
  CHECK((runs[2].from == 90 && runs[2].to == 550 && runs[2].bytes == 10));
  CHECK(runs_of({}, 10).empty());
}

TEST_CASE("a lane moves by what the profile says of ring and copy engine") {
  const auto profile = config::read_profile("h200-pcie5");
  REQUIRE(profile);
  const LaneMovers in(config::movers_between(*profile, profile->platform.home, kHbm));
  CHECK(in.by_copy_engine(1, 1, 16384));  // starts sooner
  CHECK_FALSE(in.by_copy_engine(64, 64, 16384));
  CHECK_FALSE(in.by_copy_engine(4096, 4096, 16384));
  CHECK_FALSE(in.by_copy_engine(0, 0, 16384));
}

TEST_CASE("a lane without measurements, or with those of movers it lacks, keeps the ring") {
  CHECK_FALSE(LaneMovers().by_copy_engine(1, 1, 16384));
  const transfer::MoverCurve batch{"h2d", "driver_batch", 1, 1e-9, BandwidthCurve(1e12)};
  const transfer::MoverCurve ring{"h2d", "ring", 1, 1e-5, BandwidthCurve(1e9)};
  const std::vector<transfer::MoverCurve> curves{batch, ring};
  CHECK_FALSE(LaneMovers(curves).by_copy_engine(1, 1, 16384));
}
