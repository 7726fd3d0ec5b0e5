// SPDX-License-Identifier: Apache-2.0
#include "transfer/extents.hpp"

#include <set>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

using namespace lehr;
using lehr::transfer::ExtentAllocator;

TEST_CASE("A batch of slots lies together, extent after extent") {
  ExtentAllocator slots(10, 4);
  std::vector<SlotId> taken(6);
  REQUIRE(slots.take(taken));
  CHECK(taken == std::vector<SlotId>{0, 1, 2, 3, 4, 5});
  CHECK(slots.free_slots() == 4);
  CHECK(slots.validate());
}

TEST_CASE("Empty extents are used before holes, and holes before a refusal") {
  ExtentAllocator slots(12, 4);
  std::vector<SlotId> first(8);
  REQUIRE(slots.take(first));
  slots.give_back(1);
  slots.give_back(6);
  std::vector<SlotId> next(4);
  REQUIRE(slots.take(next));
  CHECK(next == std::vector<SlotId>{8, 9, 10, 11});
  std::vector<SlotId> holes(2);
  REQUIRE(slots.take(holes));
  CHECK(std::set<SlotId>(holes.begin(), holes.end()) == std::set<SlotId>{1, 6});
  SlotId none = kNoSlot;
  CHECK_FALSE(slots.take({&none, 1}));
  CHECK(none == kNoSlot);
  CHECK(slots.validate());
}

TEST_CASE("An extent that became empty is handed out in rising order again") {
  ExtentAllocator slots(4, 4);
  std::vector<SlotId> all(4);
  REQUIRE(slots.take(all));
  for (const SlotId s : {2U, 0U, 3U, 1U}) slots.give_back(s);
  REQUIRE(slots.take(all));
  CHECK(all == std::vector<SlotId>{0, 1, 2, 3});
}

TEST_CASE("A slot can be claimed exactly once") {
  ExtentAllocator slots(7, 3);
  CHECK(slots.take_exactly(4));
  CHECK_FALSE(slots.take_exactly(4));
  CHECK_FALSE(slots.take_exactly(7));
  CHECK(slots.validate());
  std::vector<SlotId> rest(6);
  REQUIRE(slots.take(rest));
  CHECK(std::count(rest.begin(), rest.end(), 4U) == 0);
  CHECK(slots.validate());
}

TEST_CASE("Random use never hands a slot out twice and loses none") {
  const std::uint64_t seed = GENERATE(1U, 2U, 3U);
  CAPTURE(seed);
  Rng rng(seed);
  const auto capacity = 1 + rng.below(200);
  ExtentAllocator slots(capacity, 1 + rng.below(9));
  std::vector<SlotId> held;
  for (int round = 0; round < 2000; ++round) {
    if (rng.below(2) == 0) {
      std::vector<SlotId> taken(rng.below(8));
      const bool fits = taken.size() <= capacity - held.size();
      REQUIRE(slots.take(taken) == fits);
      if (fits) held.insert(held.end(), taken.begin(), taken.end());
    } else if (!held.empty()) {
      const auto at = rng.below(static_cast<std::uint32_t>(held.size()));
      slots.give_back(held[at]);
      held.erase(held.begin() + at);
    }
    REQUIRE(std::set<SlotId>(held.begin(), held.end()).size() == held.size());
    REQUIRE(slots.free_slots() == capacity - held.size());
    REQUIRE(slots.validate());
  }
}
