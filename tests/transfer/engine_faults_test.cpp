// SPDX-License-Identifier: Apache-2.0
#include <set>

#include <catch2/catch.hpp>

#include "tests/transfer/transfer_world.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

TEST_CASE("A failed store leaves the page readable where it was, and frees the slot") {
  struct Expected {
    const char* plan;
    Code code;
    Reason reason;
  };
  const Expected e = GENERATE(Expected{"write#1=eio", Code::kIo, Reason::kNone},
                              Expected{"write#1=enospc", Code::kIo, Reason::kNoSpace},
                              Expected{"write#1=truncate", Code::kIo, Reason::kTruncated});
  CAPTURE(e.plan);
  World world(with_plan(e.plan));
  const Place host = world.make(kHost, 1);
  const MoveResult failed = world.run(move_of(1, host, {kNvme, kNoSlot}));
  CHECK(failed.code == e.code);
  CHECK(failed.reason == e.reason);
  CHECK(world.intact(host, 1));
  CHECK(world.engine().tier(kNvme).slots().usage().held == 0);
  CHECK(world.engine().stats().failed[static_cast<std::size_t>(e.reason)] == 1);
  // The next one is fine, and both ends are free of leases.
  CHECK(world.run(move_of(1, host, {kNvme, kNoSlot})).code == Code::kOk);
  world.validate();
}

TEST_CASE("A failed load leaves the stored page for the next try") {
  World world(with_plan("read#1=eio"));
  const Place host = world.make(kHost, 1);
  const MoveResult stored = world.run(move_of(1, host, {kNvme, kNoSlot}));
  CHECK(world.run(move_of(1, stored.to, {kHost, kNoSlot})).code == Code::kIo);
  const MoveResult again = world.run(move_of(1, stored.to, {kHost, kNoSlot}));
  CHECK(again.code == Code::kOk);
  CHECK(world.intact(again.to, 1));
}

TEST_CASE("A failed copy between memories is told, and a given slot stays the caller's") {
  World world(with_plan("copy#1=eio"));
  const Place host = world.make(kHost, 1);
  const Place hbm{kHbm, world.take(kHbm)};
  CHECK(world.run(move_of(1, host, hbm)).code == Code::kIo);
  CHECK(world.engine().tier(kHbm).slots().is_held(hbm.slot));
  CHECK_FALSE(world.engine().holds(hbm, 1, 1));
  CHECK(world.run(move_of(1, host, hbm)).code == Code::kOk);
  CHECK(world.intact(hbm, 1));
}

TEST_CASE("Short reads and writes end with the right bytes") {
  WorldConfig config = with_plan("read#1/2=short:4096;write#1/2=short:8192");
  config.page_bytes = 64 * kKiB;
  config.use_uring = GENERATE(true, false);
  World world(config);
  for (PageId p = 0; p < 8; ++p) {
    const Place hbm = world.make(kHost, p);
    const MoveResult stored = world.run(move_of(p, hbm, {kNvme, kNoSlot}));
    REQUIRE(stored.code == Code::kOk);
    REQUIRE(stored.bytes == 64 * kKiB);
    const MoveResult loaded = world.run(move_of(p, stored.to, hbm));
    REQUIRE(loaded.code == Code::kOk);
    CHECK(world.intact(hbm, p));
    REQUIRE(world.engine().release(hbm));
  }
}

TEST_CASE("A bit flipped on the way to the file is found when the page is read") {
  World world(with_plan("write#1=bitflip"));
  const Place host = world.make(kHost, 1);
  const MoveResult stored = world.run(move_of(1, host, {kNvme, kNoSlot}));
  REQUIRE(stored.code == Code::kOk);
  const MoveResult loaded = world.run(move_of(1, stored.to, {kHost, kNoSlot}));
  CHECK(loaded.code == Code::kCorrupt);
  CHECK(loaded.reason == Reason::kChecksum);
  CHECK_FALSE(world.engine().holds(stored.to, 1, 1));
}

TEST_CASE("A slow device delays its own pages only") {
  FakeClock clock;
  WorldConfig config = with_plan("copy#1=slow:5000");
  config.clock = &clock;
  World world(config);
  const PageMove slow = move_of(1, world.make(kHost, 1), {kHbm, kNoSlot});
  Submission out;
  const Ticket ticket = world.engine().submit({&slow, 1}, {&out, 1});
  const Place other = world.make(kHost, 2);
  const PageMove quick = move_of(2, other, {kHbm, kNoSlot});
  const Ticket second = world.engine().submit({&quick, 1}, {&out, 1});
  REQUIRE(world.engine().wait(second, kLong));
  CHECK(world.next_result().page == 2);
  CHECK(world.engine().wait(ticket, 0).error().reason == Reason::kPending);
  clock.advance(5'000'000 - 1);
  CHECK(world.engine().wait(ticket, 0).error().reason == Reason::kPending);
  // Counted from the moment when the copy was done, which no test can name.
  clock.advance(5'000'000);
  REQUIRE(world.engine().wait(ticket, kLong));
  CHECK(world.next_result().page == 1);
}

TEST_CASE("Completions out of order change nothing but the order") {
  World world(with_plan("copy#1/3=reorder;read#1/2=reorder;write#1/2=reorder"));
  for (int round = 0; round < 20; ++round) {
    std::vector<PageMove> moves;
    std::vector<Place> places;
    for (PageId p = 0; p < 6; ++p) {
      places.push_back(world.make(kHost, p));
      moves.push_back(move_of(p, places.back(), {p % 2 == 0 ? kHbm : kNvme, kNoSlot}));
    }
    std::vector<Submission> out(moves.size());
    const Ticket ticket = world.engine().submit(moves, out);
    REQUIRE(world.engine().wait(ticket, kLong));
    std::set<PageId> seen;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      const MoveResult r = world.next_result();
      CHECK(r.code == Code::kOk);
      CHECK(seen.insert(r.page).second);
      if (r.to.tier == kHbm) CHECK(world.intact(r.to, r.page));
      REQUIRE(world.engine().release(r.to));
    }
    for (const Place place : places) REQUIRE(world.engine().release(place));
  }
  world.validate();
}

TEST_CASE("A storm of faults loses no page that was readable") {
  WorldConfig config =
      with_plan("read#3/7=eio;read#5/11=truncate;write#2/5=enospc;write#4/9=eio;copy#3/8=eio");
  config.use_uring = GENERATE(true, false);
  World world(config);
  for (PageId p = 0; p < 60; ++p) {
    const Place host = world.make(kHost, p);
    const MoveResult stored = world.run(move_of(p, host, {kNvme, kNoSlot}));
    const MoveResult up = world.run(move_of(p, host, {kHbm, kNoSlot}));
    if (up.code == Code::kOk) {
      CHECK(world.intact(up.to, p));
      REQUIRE(world.engine().release(up.to));
    }
    CHECK(world.intact(host, p));
    if (stored.code == Code::kOk) {
      const MoveResult back = world.run(move_of(p, stored.to, {kHost, kNoSlot}));
      if (back.code == Code::kOk) {
        CHECK(world.intact(back.to, p));
        REQUIRE(world.engine().release(back.to));
      }
      REQUIRE(world.engine().release(stored.to));
    }
    REQUIRE(world.engine().release(host));
  }
  for (TierId t = 0; t < 3; ++t) CHECK(world.engine().tier(t).slots().usage().held == 0);
  world.validate();
}
