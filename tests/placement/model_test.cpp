// SPDX-License-Identifier: Apache-2.0
#include "placement/model.hpp"

#include <limits>

#include <catch2/catch.hpp>

#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::placement;

TEST_CASE("a layer takes as long as its slowest part") {
  const Platform p = test::tiny_platform();
  LayerLoad load;
  load.hbm_bytes = 500;  // 0.5 s
  load.flops = 300;      // 0.3 s
  SECTION("HBM") {
    CHECK(layer_time(p, load).total() == Approx(0.5));
    CHECK(layer_time(p, load).exposed() == 0);
  }
  SECTION("compute") {
    load.flops = 800;
    CHECK(layer_time(p, load).total() == Approx(0.8));
    CHECK(layer_time(p, load).exposed() == 0);
  }
  SECTION("a link within the shadow of HBM is hidden") {
    load.link[0].add(50);  // 0.5 s at 100 B/s
    CHECK(layer_time(p, load).total() == Approx(0.5));
    CHECK(layer_time(p, load).exposed() == Approx(0.0));
  }
  SECTION("what a link needs beyond it is exposed") {
    load.link[0].add(10, 7);  // 0.7 s
    CHECK(layer_time(p, load).total() == Approx(0.7));
    CHECK(layer_time(p, load).exposed() == Approx(0.2));
  }
  SECTION("links run beside each other") {
    load.link[0].add(70);  // 0.7 s
    load.link[1].add(45);  // 0.9 s at 50 B/s
    CHECK(layer_time(p, load).total() == Approx(0.9));
  }
  SECTION("a stall comes before the layer, control beside nothing") {
    Platform slow = test::tiny_platform(true);
    slow.control_per_layer = 0.05;
    load.stall[2].add(20);  // 2 s at 10 B/s
    const LayerTime t = layer_time(slow, load);
    CHECK(t.stall == Approx(2.0));
    CHECK(t.total() == Approx(0.5 + 2.0 + 0.05));
    CHECK(t.exposed() == Approx(2.0));
  }
}

TEST_CASE("two links of one medium share its bandwidth") {
  Platform p = test::tiny_platform();
  LayerLoad load;
  load.link[0].add(60);  // 0.6 s alone
  load.link[1].add(30);  // 0.6 s alone
  CHECK(layer_time(p, load).total() == Approx(0.6));
  p.shared.push_back({0, 1, 75.0});  // 90 bytes at 75 B/s
  CHECK(layer_time(p, load).total() == Approx(1.2));
}

TEST_CASE("a bandwidth curve is bilinear in the logarithms and constant outside") {
  // sizes 4, 16; counts 1, 4.
  const BandwidthCurve curve({4, 16}, {1, 4}, {10, 20, 30, 50});
  CHECK(curve.at(4, 1) == Approx(10));
  CHECK(curve.at(16, 4) == Approx(50));
  CHECK(curve.at(8, 1) == Approx(20));    // half way in size
  CHECK(curve.at(8, 2) == Approx(27.5));  // (10 + 20 + 30 + 50) / 4
  CHECK(curve.at(1, 1) == Approx(10));
  CHECK(curve.at(1000, 1000) == Approx(50));
  CHECK(curve.best_for_size(8) == Approx(35));
  CHECK(curve.peak() == Approx(50));
}

TEST_CASE("latency is paid once a batch, and the bytes that fit a window are its inverse") {
  Link link{"l", 1, 0, BandwidthCurve(100.0), 0.1};
  CHECK(link_time(link, {50, 5}) == Approx(0.6));
  CHECK(link_time(link, {0, 0}) == 0);
  CHECK(link_bytes(link, 0.6, 10) == 50);
  CHECK(link_bytes(link, 0.05, 10) == 0);
}

TEST_CASE("a platform that cannot work is refused with the reason") {
  Platform p = test::tiny_platform();
  REQUIRE(p.validate());
  const auto refusal = [&] {
    const Status s = p.validate();
    REQUIRE_FALSE(s);
    return s.error().what;
  };
  SECTION("zero bandwidth") {
    p.links[0].curve = BandwidthCurve(0.0);
    CHECK(refusal().find("h2d") != std::string::npos);
  }
  SECTION("bandwidth that falls to zero with the size or the number of transfers") {
    p.links[0].curve = BandwidthCurve({4096.0, 65536.0}, {1.0, 64.0}, {1e9, 2e9, 3e9, 0.0});
    CHECK(refusal().find("h2d") != std::string::npos);
    p.links[0].curve = BandwidthCurve({4096.0, 65536.0}, {1.0}, {0.0, 1e9});
    CHECK(refusal().find("h2d") != std::string::npos);
  }
  SECTION("no number") {
    p.hbm = BandwidthCurve(std::numeric_limits<double>::quiet_NaN());
    CHECK(refusal().find("hbm") != std::string::npos);
  }
  SECTION("no way home") {
    p.links.pop_back();
    CHECK(refusal().find("home") != std::string::npos);
  }
  SECTION("a link to nowhere") {
    p.links[0].to = 7;
    CHECK(refusal().find("h2d") != std::string::npos);
  }
}
