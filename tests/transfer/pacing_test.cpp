// SPDX-License-Identifier: Apache-2.0
#include "transfer/pacing.hpp"

#include <catch2/catch.hpp>

using namespace lehr::transfer;

TEST_CASE("Devices that share a link start background work in turns") {
  const Stagger stagger(4, 10);
  CHECK(stagger.next_start(0, 0) == 0);
  CHECK(stagger.next_start(0, 9) == 9);
  CHECK(stagger.next_start(0, 10) == 40);
  CHECK(stagger.next_start(1, 0) == 10);
  CHECK(stagger.next_start(3, 35) == 35);
  CHECK(stagger.next_start(3, 40) == 70);
  for (std::int64_t now = 0; now < 200; ++now) {
    int open = 0;
    for (std::uint32_t d = 0; d < 4; ++d) open += stagger.next_start(d, now) == now;
    REQUIRE(open == 1);
  }
}

TEST_CASE("Work that would run into the next device's phase waits for its own next one") {
  const Stagger turns(2, 100);
  CHECK(turns.next_start(0, 60, 40) == 60);
  CHECK(turns.next_start(0, 61, 40) == 200);
  CHECK(turns.next_start(1, 0, 100) == 100);
  CHECK(turns.next_start(1, 101, 100) == 300);
  CHECK(turns.next_start(1, 150, 101) == 150);  // longer than any phase
  CHECK(turns.next_start(1, 201, 101) == 300);
}

TEST_CASE("One device is never held back") {
  const Stagger stagger(1, 10);
  for (std::int64_t now = 0; now < 50; ++now) CHECK(stagger.next_start(0, now) == now);
}

TEST_CASE("The pacer settles below the allowed slow-down") {
  const double per_share = GENERATE(0.01, 0.1, 0.5);  // slow-down at the full rate
  Pacer pacer(0.03);
  for (int step = 0; step < 500; ++step) pacer.measured(per_share * pacer.share());
  // The last hundred steps, not only the last one.
  double worst = 0;
  double least = 1;
  for (int step = 0; step < 100; ++step) {
    pacer.measured(per_share * pacer.share());
    worst = std::max(worst, per_share * pacer.share());
    least = std::min(least, pacer.share());
  }
  CHECK(worst <= 0.03 + per_share * 0.05);
  CHECK(least >= std::min(1.0, 0.03 / per_share) * 0.7);
}

TEST_CASE("A pacer that is told nonsense keeps a share that moves") {
  Pacer pacer(0.0);
  for (int i = 0; i < 100; ++i) pacer.measured(1.0);
  CHECK(pacer.share() == Approx(1.0 / 64));
  pacer.measured(-5);
  pacer.measured(std::numeric_limits<double>::quiet_NaN());
  CHECK(pacer.share() > 0);
  CHECK(pacer.share() <= 1);
}
