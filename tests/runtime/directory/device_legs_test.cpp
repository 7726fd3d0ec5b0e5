// SPDX-License-Identifier: Apache-2.0
// Large jobs over a device that is not there: several flights each, and blocks that several threads
// sum in pieces.
#include <atomic>

#include <catch2/catch.hpp>

#include "tests/runtime/directory/device_world.hpp"

using namespace lehr;
using namespace lehr::directory;
using device_world::Form;
using device_world::kPatience;
using device_world::World;
using test::FakeLanes;

namespace {

constexpr std::uint32_t kBlocks = 12;  ///< of a job, 12.4 MiB

/// Blocks of 1.03 MiB: four whole pieces of a sum, and a part of one.
Form large(std::uint32_t threads) { return {4, 64, 352, threads}; }

/// Loads what was stored as 0 .. kBlocks - 1 into the pool's second half.
JobId load(World& w, bool layered = false) {
  const auto job = w.prepare_load(0, kBlocks, kBlocks, layered);
  REQUIRE(job);
  w.lanes->started = 0;
  REQUIRE(w.service->submit(*job));
  return *job;
}

World& filled(World& w) {
  for (std::uint32_t b = 0; b < kBlocks; ++b) w.fill(b, b);
  return w;
}

SlotId slot_of(World& w, JobId job, std::size_t item) {
  return w.service->with([&](Directory& d) { return d.job(job)->items[item].slot; });
}

/// Bytes of a layer in a block, as they should be.
bool layer_holds(const World& w, std::uint32_t block, std::uint32_t what, std::uint32_t layer) {
  const std::vector<std::byte> found = w.read(block), wanted = w.contents(what);
  const auto bytes = static_cast<std::ptrdiff_t>(wanted.size() / 3);
  return std::equal(found.begin() + bytes * layer, found.begin() + bytes * (layer + 1),
                    wanted.begin() + bytes * layer);
}

}  // namespace

TEST_CASE("a large job moves in several flights, and in one where the lane has little room") {
  const std::uint32_t threads = GENERATE(1U, 4U);
  World w(2 * kBlocks, kBlocks, 0, "", large(threads));
  filled(w);
  const bool roomy = GENERATE(true, false);
  w.lanes->room_left = roomy ? 384 : 40;
  w.stored(0, kBlocks, 0);
  CHECK(w.lanes->started == (roomy ? 3 : 1));
  const JobId job = load(w);
  for (const JobItem& item : w.finish(job)) CHECK(item.state == ItemState::kDone);
  CHECK(w.lanes->started == (roomy ? 3 : 1));
  for (std::uint32_t b = 0; b < kBlocks; ++b) CHECK(w.holds(kBlocks + b, b));
  CHECK(w.padding_untouched());
}

TEST_CASE("the first blocks of a load move before the last are summed") {
  World w(2 * kBlocks, kBlocks, 0, "", large(1));
  filled(w);
  w.stored(0, kBlocks, 0);
  w.fill(2 * kBlocks - 1, 99);
  // The last block goes bad when the first flight is let go: had it been summed by then, it would
  // arrive as it is now.
  std::atomic<int> opened{0};
  std::atomic<std::byte*> last{nullptr};
  w.lanes->at_open = [&] {
    if (opened++ == 0) *last ^= std::byte{1};
  };
  const auto job = w.prepare_load(0, kBlocks, kBlocks);
  REQUIRE(job);
  last = w.service->store()->host_slot(slot_of(w, *job, kBlocks - 1)).data() + 300'000;
  REQUIRE(w.service->submit(*job));
  const auto items = w.finish(*job);
  CHECK(opened == 3);
  for (std::uint32_t b = 0; b + 1 < kBlocks; ++b) {
    CHECK(items[b].state == ItemState::kDone);
    CHECK(w.holds(kBlocks + b, b));
  }
  CHECK(items.back().reason == Reason::kChecksum);
  CHECK(w.holds(2 * kBlocks - 1, 99));
}

TEST_CASE("a wrong byte is found in any piece of a block, and the others arrive") {
  const std::uint32_t threads = GENERATE(1U, 4U);
  const bool on_device = GENERATE(true, false);
  World w(2 * kBlocks, kBlocks, 0, "", large(threads));
  filled(w);
  w.stored(0, kBlocks, 0);
  // What a device's pool stored a pool in host memory loads: both sum alike.
  std::vector<std::byte> plain(on_device ? 0 : w.memory.size());
  if (!on_device) {
    PoolDesc desc = w.desc();
    desc.base = plain.data();
    desc.on_device = false;
    w.pool = *w.service->register_pool(desc);
  }
  const auto job = w.prepare_load(0, kBlocks, kBlocks);
  REQUIRE(job);
  const Bytes bytes = contents_bytes(w.layout);
  for (std::size_t piece = 0; piece < 5; ++piece) {
    const std::size_t item = 2 * piece + 1, at = std::min(bytes - 1, piece * 256 * kKiB + 777);
    w.service->store()->host_slot(slot_of(w, *job, item))[at] ^= std::byte{1};
  }
  REQUIRE(w.service->submit(*job));
  const auto items = w.finish(*job);
  if (!on_device) w.memory.swap(plain);
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    const bool bad = b % 2 == 1 && b < 10;
    CHECK((items[b].state == ItemState::kFailed) == bad);
    CHECK(w.holds(kBlocks + b, b) == !bad);
    if (bad) CHECK(items[b].reason == Reason::kChecksum);
  }
}

TEST_CASE("a layer's event means that layer of all blocks, in however many flights they come") {
  World w(2 * kBlocks, kBlocks, 0, "", large(4));
  filled(w);
  w.stored(0, kBlocks, 0);
  w.lanes->launches = 0;
  const JobId job = load(w, true);
  REQUIRE(w.lanes->started == 3);
  FakeLanes::Stream* const user = w.lanes->stream();
  std::atomic<int> told{0};
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    REQUIRE(*w.service->hold(job, layer, user));
    w.lanes->work(user, [&, layer] {
      bool all = true;
      for (std::uint32_t b = 0; b < kBlocks; ++b)
        all = all && layer_holds(w, kBlocks + b, b, layer);
      CHECK(all);
      // No later than it must: the last layer of the last flight has not moved yet.
      CHECK(layer_holds(w, 2 * kBlocks - 1, kBlocks - 1, 2) == (layer == 2));
      ++told;
    });
  }
  // Two flights of whole blocks, and three launches of the last one.
  for (int launch = 0; launch < 5; ++launch) {
    CHECK(told == std::max(0, launch - 2));
    w.lanes->launches = 1;
    while (w.lanes->launches != 0) w.lanes->go();
    w.lanes->go();  // whoever ran the launch is done with what comes behind it
  }
  CHECK(told == 3);
  w.lanes->launches = -1;
  for (const JobItem& item : w.finish(job)) CHECK(item.state == ItemState::kDone);
}

TEST_CASE("a flight of a store that fails takes its own blocks along only") {
  World w(2 * kBlocks, kBlocks, 0, "", large(4));
  filled(w);
  w.lanes->failing = 1;  // the first of 6, 4 and 2 blocks
  const auto job = w.prepare_store(0, kBlocks, 0);
  REQUIRE(job);
  REQUIRE(w.service->submit(*job));
  const auto items = w.finish(*job);
  for (std::uint32_t b = 0; b < kBlocks; ++b)
    CHECK((items[b].state == ItemState::kFailed) == (b < 6));
  const auto back = w.prepare_load(6, 6, kBlocks);
  REQUIRE(back);
  REQUIRE(w.service->submit(*back));
  w.finish(*back);
  for (std::uint32_t b = 6; b < kBlocks; ++b) CHECK(w.holds(kBlocks + b - 6, b));
}

TEST_CASE("flights of a store are sealed as they land, and their copies written down after") {
  // Many stores in flight at once, written to a file behind them, and read back through it.
  World w(2 * kBlocks, 6, 4 * kBlocks, "", large(4));
  filled(w);
  for (std::uint32_t first = 0; first < kBlocks; first += 6) w.stored(first, 6, first);
  const bool layered = GENERATE(false, true);
  const JobId job = load(w, layered);
  for (const JobItem& item : w.finish(job)) CHECK(item.state == ItemState::kDone);
  for (std::uint32_t b = 0; b < kBlocks; ++b) CHECK(w.holds(kBlocks + b, b));
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}
