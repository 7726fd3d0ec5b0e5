// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/slot_map.hpp"

#include <catch2/catch.hpp>

using lehr::directory::SlotMap;

TEST_CASE("an erased id is stale, also when its slot is taken again") {
  SlotMap<int> map;
  const auto a = map.insert(1);
  REQUIRE(map.find(a) != nullptr);
  CHECK(*map.find(a) == 1);
  map.erase(a);
  CHECK(map.find(a) == nullptr);
  const auto b = map.insert(2);
  CHECK(a != b);
  CHECK((a & 0xFFFFFF) == (b & 0xFFFFFF));
  CHECK(map.find(a) == nullptr);
  CHECK(*map.find(b) == 2);
  map.erase(a);  // a stale id erases nothing
  CHECK(map.size() == 1);
}

TEST_CASE("maps of different seeds do not know each other's ids, and no id is zero") {
  SlotMap<int> one(7);
  SlotMap<int> other(8);
  const auto id = one.insert(1);
  other.insert(1);
  CHECK(other.find(id) == nullptr);
  CHECK(SlotMap<int>(0).insert(1) != 0);
  CHECK(SlotMap<int>(1U << 24).insert(1) >> 24 != 0);
  CHECK(one.find(0) == nullptr);
  CHECK(one.find(~std::uint64_t{0}) == nullptr);
}
