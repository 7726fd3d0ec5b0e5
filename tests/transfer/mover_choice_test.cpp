// SPDX-License-Identifier: Apache-2.0
#include "transfer/mover_choice.hpp"

#include <catch2/catch.hpp>

using namespace lehr;
using namespace lehr::transfer;

namespace {

MoverCurve curve(const char* mover, double run, double latency_us, double gbps) {
  return {"h2d", mover, run, latency_us * 1e-6, BandwidthCurve(gbps * 1e9)};
}

}  // namespace

TEST_CASE("Few bytes go with the mover that starts soonest, many with the one that runs fastest") {
  const std::vector<MoverCurve> curves{curve("ring", 1, 18, 50), curve("copy_engine", 1, 11, 5)};
  // 18 us + b / 50 and 11 us + b / 5 meet at 7 us * 5 * 50 / 45 = 38.9 kB.
  CHECK(fastest(curves, {4096, 9, 1}) == 1);
  CHECK(fastest(curves, {4096, 10, 1}) == 0);
  CHECK(fastest(curves, {16384, 4096, 1}) == 0);
}

TEST_CASE("A curve of runs counts for batches of such runs only") {
  const std::vector<MoverCurve> curves{curve("ring", 1, 18, 50), curve("copy_engine", 1, 11, 5),
                                       curve("copy_engine", 16, 11, 54),
                                       curve("staged", 16, 30, 54)};
  CHECK(fastest(curves, {16384, 4096, 1}) == 0);
  CHECK(fastest(curves, {16384, 4096, 15}) == 0);
  CHECK(fastest(curves, {16384, 4096, 16}) == 2);  // the scattered one of that mover is superseded
  CHECK(fastest(curves, {16384, 4096, 4096}) == 2);
}

TEST_CASE("Equal promises go to the first, and no curves are no choice") {
  const std::vector<MoverCurve> curves{curve("ring", 1, 10, 50), curve("staged", 1, 10, 50)};
  CHECK(fastest(curves, {8192, 64, 1}) == 0);
  CHECK(fastest({}, {8192, 64, 1}) == 0);
  const std::vector<MoverCurve> long_runs{curve("staged", 16, 10, 50)};
  CHECK(fastest(long_runs, {8192, 64, 1}) == long_runs.size());
}
