// SPDX-License-Identifier: Apache-2.0
#include "transfer/reservation.hpp"

#include <map>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

using namespace lehr;
using lehr::transfer::Reservations;

namespace {

using Kind = Reservations::Decision::Kind;

std::uint64_t granted(Reservations& r) {
  const auto decision = r.next();
  REQUIRE(decision);
  REQUIRE(decision->kind == Kind::kGrant);
  return decision->group;
}

}  // namespace

TEST_CASE("Two loads whose sum does not fit: the second waits for the first") {
  Reservations pool(7);
  REQUIRE(pool.request(1, 5, 0));
  REQUIRE(pool.request(2, 4, 0));
  CHECK(granted(pool) == 1);
  CHECK_FALSE(pool.next());
  pool.finish(1);
  CHECK(granted(pool) == 2);
}

TEST_CASE("Two half loads that wait for each other: the smaller is rolled back whole") {
  Reservations pool(7);
  REQUIRE(pool.request(1, 1, 4));
  REQUIRE(pool.request(2, 1, 3));
  const auto decision = pool.next();
  REQUIRE(decision);
  CHECK(decision->kind == Kind::kRollBack);
  CHECK(decision->group == 2);
  CHECK(granted(pool) == 1);
  CHECK_FALSE(pool.next());
  pool.finish(1);
  CHECK(granted(pool) == 2);
  pool.finish(2);
  CHECK(pool.free() == 7);
}

TEST_CASE("Control: granting whatever is free strands both loads") {
  Reservations pool(7, 16, false);
  REQUIRE(pool.request(1, 5, 0));
  REQUIRE(pool.request(2, 4, 0));
  while (pool.next()) {
  }
  CHECK(pool.free() == 0);
  CHECK(pool.waiting() != 0);
}

TEST_CASE("A holder goes before a large head of the queue") {
  Reservations pool(270);
  constexpr std::uint64_t kH = 1, kL = 2, kW = 3;
  REQUIRE(pool.request(kH, 100, 0));
  REQUIRE(pool.request(kL, 5, 250));
  REQUIRE(pool.request(kW, 10, 0));
  CHECK(granted(pool) == kL);
  CHECK(granted(pool) == kW);
  CHECK_FALSE(pool.next());
  pool.finish(kW);
  CHECK_FALSE(pool.next());
  pool.finish(kL);
  CHECK(granted(pool) == kH);
}

TEST_CASE("Two long prompts, both half loaded, both finish") {
  Reservations pool(2048);
  REQUIRE(pool.request(1, 1600 - 512, 512));
  REQUIRE(pool.request(2, 1200 - 736, 736));
  CHECK(granted(pool) == 2);
  CHECK_FALSE(pool.next());
  pool.finish(2);
  CHECK(granted(pool) == 1);
  pool.finish(1);
  CHECK(pool.free() == 2048);
}

TEST_CASE("A stream of small loads cannot starve a large one") {
  Reservations pool(10, 3);
  REQUIRE(pool.request(100, 6, 0));
  CHECK(granted(pool) == 100);
  REQUIRE(pool.request(1, 8, 0));
  std::uint64_t small = 2;
  int passed = 0;
  for (; passed < 20; ++passed) {
    REQUIRE(pool.request(small, 1, 0));
    if (!pool.next()) break;
    pool.finish(small++);
  }
  CHECK(passed == 3);
  pool.finish(100);
  CHECK(granted(pool) == 1);
}

TEST_CASE("What can never fit is refused and changes nothing") {
  Reservations pool(8);
  CHECK(pool.request(1, 9, 0).error().reason == Reason::kOverBudget);
  CHECK(pool.request(1, 5, 4).error().reason == Reason::kOverBudget);
  CHECK(pool.request(1, UINT64_MAX, 1).error().reason == Reason::kOverBudget);
  CHECK(pool.take(9).error().reason == Reason::kOverBudget);
  CHECK(pool.waiting() == 0);
  CHECK(pool.free() == 8);
  REQUIRE(pool.request(1, 8, 0));
  CHECK(pool.request(1, 1, 0).error().reason == Reason::kPending);
  CHECK(granted(pool) == 1);
}

TEST_CASE("No mix of groups comes to a stand-still") {
  const std::uint64_t seed = GENERATE(range(1, 40));
  CAPTURE(seed);
  Rng rng(seed);
  const std::uint64_t capacity = 5 + rng.below(60);
  Reservations pool(capacity, rng.below(4));
  std::map<std::uint64_t, std::uint64_t> need;
  std::uint64_t room = capacity;
  for (std::uint64_t g = 1; g <= 12; ++g) {
    const std::uint64_t held = rng.below(static_cast<std::uint32_t>(room) + 1) / 3;
    const std::uint64_t more = rng.below(static_cast<std::uint32_t>(capacity - held)) + 1;
    REQUIRE(pool.request(g, more, held));
    room -= held;
    need[g] = more;
  }
  std::vector<std::uint64_t> running;
  int idle = 0;
  while (!need.empty() || !running.empty()) {
    const auto decision = pool.next();
    if (decision && decision->kind == Kind::kGrant) {
      REQUIRE(need.erase(decision->group) == 1);
      running.push_back(decision->group);
      idle = 0;
    } else if (!decision && !running.empty()) {
      pool.finish(running.front());
      running.erase(running.begin());
      idle = 0;
    } else {
      REQUIRE(++idle < 13);  // each roll-back is progress, and there are at most twelve
    }
    REQUIRE(pool.free() <= capacity);
  }
  CHECK(pool.free() == capacity);
}
