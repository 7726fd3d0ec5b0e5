// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "tests/transfer/transfer_world.hpp"
#include "transfer/device_engine.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

// A donor's memory is stood for by the world's first tier.

TEST_CASE("A donor's pages move on, and its slots leave circulation") {
  WorldConfig config;
  config.hbm = 8;
  config.host = 16;
  World world(config);
  std::map<PageId, Place> places;
  for (PageId page = 0; page < 8; ++page) places[page] = world.make(kHbm, page, 5);
  const Evacuation gone = evacuate(world.engine(), kHbm, 4, kHost, kLong);
  CHECK(gone.complete());
  CHECK(gone.moved.size() == 4);
  CHECK(gone.others.empty());
  for (const MoveResult& r : gone.moved) {
    CHECK(r.from.slot >= 4);
    places[r.page] = r.to;
  }
  for (const auto& [page, place] : places) CHECK(world.intact(place, page, 5));
  const SlotUsage usage = world.engine().tier(kHbm).slots().usage();
  CHECK(usage.held == 4);
  CHECK(usage.withheld == 4);
  world.validate();
}

TEST_CASE("Pages that the next tier has no room for stay readable where they are") {
  WorldConfig config;
  config.hbm = 8;
  config.host = 3;
  World world(config);
  std::map<PageId, Place> places;
  for (PageId page = 0; page < 8; ++page) places[page] = world.make(kHbm, page);
  const Evacuation gone = evacuate(world.engine(), kHbm, 0, kHost, kLong);
  CHECK_FALSE(gone.complete());
  CHECK(gone.left == 5);
  CHECK(gone.moved.size() == 3);
  CHECK(gone.refused[static_cast<std::size_t>(Reason::kOverBudget)] +
            gone.refused[static_cast<std::size_t>(Reason::kNoEvictable)] ==
        5);
  for (const MoveResult& r : gone.moved) places[r.page] = r.to;
  for (const auto& [page, place] : places) CHECK(world.intact(place, page));
  world.validate();
}

TEST_CASE("A slot that is read or filled meanwhile is left until that has ended") {
  WorldConfig config;
  config.hbm = 4;
  config.host = 8;
  World world(config);
  const Place read = world.make(kHbm, 1);
  SlotId filling = world.take(kHbm);  // without a page yet: a tail that is being written
  auto reader = world.engine().lease(read, LeaseMode::kRead);
  REQUIRE(reader);
  const Evacuation gone = evacuate(world.engine(), kHbm, 0, kHost, kLong);
  REQUIRE(gone.moved.size() == 1);
  CHECK(world.intact(gone.moved[0].to, 1));
  CHECK(gone.left == 2);  // the reader's slot, and the one that is filled
  reader->end();
  CHECK(world.engine().tier(kHbm).slots().in_use_past_limit() == 1);
  REQUIRE(world.engine().release({kHbm, filling}));
  CHECK(world.engine().tier(kHbm).slots().in_use_past_limit() == 0);
}

TEST_CASE("Results of the caller's own moves are handed on by an evacuation") {
  WorldConfig config;
  config.hbm = 4;
  config.host = 8;
  World world(config);
  const Place mine = world.make(kHost, 9);
  const Place other = world.make(kHbm, 1);
  const Submission said =
      world.submit({9, 1, mine, {kHbm, kNoSlot}, Cause::kOther, Urgency::kBackground, {}});
  REQUIRE(said.job != 0);
  const Evacuation gone = evacuate(world.engine(), kHbm, other.slot, kHost, kLong);
  REQUIRE(world.engine().wait_all(kLong));
  std::vector<MoveResult> rest(4);
  rest.resize(world.engine().poll(rest));
  rest.insert(rest.end(), gone.others.begin(), gone.others.end());
  const auto found = std::find_if(rest.begin(), rest.end(),
                                  [&](const MoveResult& r) { return r.job == said.job; });
  CHECK(found != rest.end());
}

TEST_CASE("Builds without CUDA, and machines without a device, say so") {
  if (!devices().empty()) return;
  CHECK_FALSE(DeviceMemory::create({}));
  CHECK(make_device_mover({}).error().code == Code::kUnsupported);
  CHECK(PinnedMemory::create({}).error().code == Code::kUnsupported);
  DeviceEngineConfig config;
  config.page_bytes = 4096;
  config.hbm_pages = 4;
  const auto engine = make_device_engine(config);
  REQUIRE_FALSE(engine);
  CHECK(engine.error().code == Code::kUnsupported);
  CHECK_FALSE(engine.error().what.empty());
}
