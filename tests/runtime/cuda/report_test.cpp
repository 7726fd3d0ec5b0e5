// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/rng.hpp"
#include "runtime/report/perfetto.hpp"
#include "runtime/report/prediction.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::runtime;

TEST_CASE("errors are relative to what was measured, and layers without a time do not count") {
  const std::vector<Seconds> predicted{1.0, 2.1, 3.0, 8.0, 5.0};
  const std::vector<Seconds> measured{1.0, 2.0, 4.0, 10.0, 0.0};
  const ErrorQuantiles e = relative_errors(predicted, measured);
  CHECK(e.count == 4);
  // 0, 0.05, 0.2, 0.25 sorted; nearest ranks.
  CHECK(e.median == Approx(0.05));
  CHECK(e.p95 == Approx(0.25));
  CHECK(trusted(e));
  CHECK_FALSE(trusted({0.11, 0.2, 4}));
  CHECK_FALSE(trusted({0.05, 0.26, 4}));
  CHECK_FALSE(trusted({}));
}

TEST_CASE("a calibration finds the machine that made the times") {
  const placement::Platform told = test::tiny_platform();
  placement::Platform real = told;
  real.hbm = BandwidthCurve(800.0);            // 0.8 x
  real.links[0].curve = BandwidthCurve(60.0);  // 0.6 x
  real.control_per_layer = 0.05;
  Rng rng(7);
  std::vector<MeasuredLayer> layers;
  for (int i = 0; i < 200; ++i) {
    MeasuredLayer l;
    l.load.hbm_bytes = 500 + rng.below(1000);
    l.load.link[0].add(1, rng.below(150));  // the link bounds some layers, HBM the others
    l.predicted = placement::layer_time(told, l.load).total();
    l.measured = placement::layer_time(real, l.load).total();
    layers.push_back(l);
  }
  const Calibration c = calibrate(told, layers);
  CHECK(c.hbm_scale == Approx(0.8).margin(0.011));
  CHECK(c.link_scale == Approx(0.6).margin(0.011));
  CHECK(c.control_per_layer == Approx(0.05).margin(0.02));
  std::vector<Seconds> before, after, measured;
  for (const MeasuredLayer& l : layers) {
    before.push_back(l.predicted);
    after.push_back(placement::layer_time(c.platform, l.load).total());
    measured.push_back(l.measured);
  }
  CHECK_FALSE(trusted(relative_errors(before, measured)));
  CHECK(trusted(relative_errors(after, measured)));
}

TEST_CASE("what no layer tells stays as the profile has it") {
  const placement::Platform told = test::tiny_platform();
  std::vector<MeasuredLayer> layers;
  for (int i = 0; i < 40; ++i) {
    MeasuredLayer l;
    l.load.hbm_bytes = 1000 + static_cast<Bytes>(i) * 10;  // no transfers at all
    l.measured = placement::layer_time(told, l.load).total() + 0.1;
    layers.push_back(l);
  }
  const Calibration c = calibrate(told, layers);
  CHECK(c.link_scale == 1.0);
  CHECK(c.hbm_scale == Approx(1.0).margin(0.021));
  const Calibration few = calibrate(told, std::span(layers).first(3));
  CHECK(few.hbm_scale == 1.0);
  CHECK(few.control_per_layer == told.control_per_layer);
}

TEST_CASE("a timeline is JSON of trace events, whatever the names hold") {
  TimelineFile file;
  file.name_process(1, "a \"GPU\"\n");
  file.name_track(1, 2, "back\\slash");
  file.slice(1, 2, "layer 0", 0.5, 0.25, R"("pages": 3)");
  file.counter(1, "misses", 0.5, 7);
  const auto path = std::filesystem::temp_directory_path() / "lehr_timeline_test.json";
  REQUIRE(file.write(path.string()));
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  std::filesystem::remove(path);
  const auto& events = json.at("traceEvents");
  REQUIRE(events.size() == 5);
  CHECK(events[0]["args"]["name"] == "a \"GPU\"\n");
  CHECK(events[1]["args"]["name"] == "back\\slash");
  const auto& slice = events[3];
  CHECK(slice["ph"] == "X");
  CHECK(slice["ts"] == 500000.0);  // microseconds
  CHECK(slice["dur"] == 250000.0);
  CHECK(slice["args"]["pages"] == 3);
  CHECK(events[4]["args"]["value"] == 7);
  CHECK_FALSE(file.write("/nonexistent/folder/file.json"));
}
