// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/home_slots.hpp"

#include <catch2/catch.hpp>

using lehr::runtime::cuda::HomeSlots;

TEST_CASE("a place is free again once its last launch and its last transfer have ended") {
  HomeSlots slots(3, 2);
  CHECK(slots.places() == 5);
  CHECK(slots.place(1) == 1);
  slots.use(1, 4);  // the launch numbered 4 reads it
  const auto fresh = slots.take();
  REQUIRE(fresh);
  CHECK(*fresh == 3);
  slots.rename(1, *fresh, 5);
  CHECK(slots.place(1) == 3);
  CHECK(slots.free() == 1);
  slots.keep();
  slots.begin_transfer(1);
  slots.reclaim(5);  // 0 to 4 have ended; it retired in 5
  CHECK(slots.free() == 1);
  slots.reclaim(6);
  CHECK(slots.free() == 1);
  slots.end_transfer(1);
  slots.reclaim(6);
  CHECK(slots.free() == 2);
  CHECK(slots.take() == 1U);
  CHECK(slots.take() == 4U);
  CHECK_FALSE(slots.take());
}

TEST_CASE("what was not handed over goes back") {
  HomeSlots slots(2, 3);
  slots.rename(0, *slots.take(), 0);
  slots.keep();
  slots.rename(0, *slots.take(), 1);
  slots.rename(1, *slots.take(), 1);
  slots.rollback();
  CHECK(slots.place(0) == 2);
  CHECK(slots.place(1) == 1);
  slots.reclaim(99);  // the place before the first, and the two that were given back: no others
  CHECK(slots.free() == 3);
  for (int i = 0; i < 3; ++i) {
    const auto place = slots.take();
    CHECK((place && *place != 2 && *place != 1));
  }
}

TEST_CASE("filled says after how many launches the contents are there") {
  HomeSlots slots(1, 1);
  CHECK(slots.filled(0) == 0);
  slots.fill(0, 7);
  CHECK(slots.filled(0) == 8);
  const auto place = slots.take();
  slots.fill(*place, 3);
  slots.retire(*place);
  slots.reclaim(4);
  CHECK(slots.filled(*slots.take()) == 0);  // of the one before, nothing is left
}
