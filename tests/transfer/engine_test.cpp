// SPDX-License-Identifier: Apache-2.0
#include "transfer/engine.hpp"

#include <map>

#include <catch2/catch.hpp>

#include "tests/transfer/transfer_world.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

std::string state_of(TransferEngine& engine) {
  std::string text;
  for (std::size_t t = 0; t < engine.tiers(); ++t) {
    const SlotUsage u = engine.tier(static_cast<TierId>(t)).slots().usage();
    text += std::to_string(u.free) + "," + std::to_string(u.held) + "," +
            std::to_string(u.retiring) + "," + std::to_string(u.leases) + ";";
  }
  const EngineStats stats = engine.stats();
  return text + std::to_string(stats.unfinished) + "," + std::to_string(stats.finished) + "," +
         std::to_string(stats.cancelled);
}

}  // namespace

TEST_CASE("A page goes down to the file and comes back whole") {
  WorldConfig config;
  config.use_uring = GENERATE(true, false);
  config.page_bytes = GENERATE(Bytes{4096}, Bytes{5000}, Bytes{256 * kKiB});
  CAPTURE(config.use_uring, config.page_bytes);
  World world(config);
  const Place start = world.make(kHbm, 42, 7);
  const MoveResult down = world.run(move_of(42, start, {kHost, kNoSlot}, 7));
  REQUIRE(down.code == Code::kOk);
  const MoveResult stored = world.run(move_of(42, down.to, {kNvme, kNoSlot}, 7));
  REQUIRE(stored.code == Code::kOk);
  CHECK(stored.bytes == (config.page_bytes + 4095) / 4096 * 4096);
  fill(world.bytes(start), 1, 1);
  fill(world.bytes(down.to), 2, 2);
  REQUIRE(world.engine().release(start));
  REQUIRE(world.engine().release(down.to));
  const MoveResult loaded = world.run(move_of(42, stored.to, {kHost, kNoSlot}, 7));
  REQUIRE(loaded.code == Code::kOk);
  const MoveResult up = world.run(move_of(42, loaded.to, {kHbm, kNoSlot}, 7));
  REQUIRE(up.code == Code::kOk);
  CHECK(world.intact(up.to, 42, 7));
  CHECK(world.engine().holds(stored.to, 42, 7));
  const EngineStats stats = world.engine().stats();
  CHECK(stats.finished == 4);
  CHECK(stats.unfinished == 0);
  REQUIRE(stats.links.size() == 4);
  CHECK(stats.links[0].jobs[static_cast<std::size_t>(Cause::kOther)] == 1);
  CHECK(stats.links[2].bytes[static_cast<std::size_t>(Cause::kOther)] == stored.bytes);
  world.validate();
}

TEST_CASE("Chained moves in one batch follow each other") {
  World world;
  const Place host = world.make(kHost, 5);
  const Place file{kNvme, world.take(kNvme)};
  const Place back{kHost, world.take(kHost)};
  const Place hbm{kHbm, world.take(kHbm)};
  const std::vector<PageMove> moves{move_of(5, host, file), move_of(5, file, back),
                                    move_of(5, back, hbm)};
  std::vector<Submission> out(3);
  const Ticket ticket = world.engine().submit(moves, out);
  REQUIRE(world.engine().wait(ticket, kLong));
  for (int i = 0; i < 3; ++i) CHECK(world.next_result().code == Code::kOk);
  CHECK(world.intact(hbm, 5));
  world.validate();
}

TEST_CASE("A move whose source holds something else fails, and moves nothing") {
  World world;
  const Place host = world.make(kHost, 5, 3);
  const Place hbm = world.make(kHbm, 6, 1);
  const MoveResult stale = world.run(move_of(5, host, hbm, 4));
  CHECK(stale.code == Code::kStale);
  CHECK(stale.reason == Reason::kGeneration);
  CHECK(world.intact(hbm, 6, 1));
  // An empty file slot holds no page at all.
  const Place file{kNvme, world.take(kNvme)};
  CHECK(world.run(move_of(5, file, {kHost, kNoSlot}, 3)).reason == Reason::kGeneration);
  CHECK(world.engine().tier(kHost).slots().usage().held == 1);
  CHECK(world.engine().stats().failed[static_cast<std::size_t>(Reason::kGeneration)] == 2);
}

TEST_CASE("Refusals come with a reason, one each, and leave the state unchanged") {
  WorldConfig config;
  config.hbm = 2;
  config.max_jobs = 3;
  World world(config);
  const Place a = world.make(kHost, 1);
  world.make(kHbm, 2);
  world.make(kHbm, 3);
  const std::string before = state_of(world.engine());
  const auto refusal = [&](PageMove move) {
    const Submission out = world.submit(move);
    CHECK(out.job == 0);
    CHECK(state_of(world.engine()) == before);
    return out;
  };
  CHECK(refusal(move_of(1, a, {kHbm, kNoSlot})).reason == Reason::kOverBudget);
  CHECK(refusal(move_of(1, a, {kHbm, 77})).reason == Reason::kOutOfRange);
  CHECK(refusal(move_of(1, a, {9, 0})).reason == Reason::kOutOfRange);
  CHECK(refusal(move_of(1, {9, 0}, a)).reason == Reason::kOutOfRange);
  CHECK(refusal(move_of(1, {kHost, 7}, {kNvme, kNoSlot})).reason == Reason::kOutOfRange);
  CHECK(refusal(move_of(1, {kHbm, 0}, {kNvme, kNoSlot})).code == Code::kUnsupported);
  CHECK(refusal(move_of(1, a, a)).code == Code::kUnsupported);
  CHECK(refusal(move_of(kNoPage, a, {kNvme, kNoSlot})).code == Code::kInvalid);
  CHECK(refusal(move_of(1, a, {kNvme, kNoSlot}, 0)).code == Code::kInvalid);
  world.validate();
}

TEST_CASE("A batch says of each move what became of it, an atomic one is taken whole or not") {
  WorldConfig config;
  config.hbm = 2;
  World world(config);
  std::vector<PageMove> moves;
  for (PageId p = 0; p < 3; ++p) {
    moves.push_back(move_of(p, world.make(kHost, p), {kHbm, kNoSlot}));
  }
  const std::string before = state_of(world.engine());
  std::vector<Submission> out(3);
  world.engine().submit(moves, out, true);
  for (const Submission& s : out) {
    CHECK(s.job == 0);
    CHECK(s.reason == Reason::kOverBudget);
  }
  CHECK(state_of(world.engine()) == before);
  // A failure that no count foretells: the second move writes where the first one does.
  auto twice = std::span(moves).first(2);
  const SlotId target = world.take(kHbm);
  twice[0].to.slot = twice[1].to.slot = target;
  const std::string held = state_of(world.engine());
  world.engine().submit(twice, out, true);
  CHECK(out[0].job == 0);
  CHECK(out[1].reason == Reason::kLeased);
  CHECK(state_of(world.engine()) == held);
  MoveResult none;
  CHECK(world.engine().poll({&none, 1}) == 0);
  REQUIRE(world.engine().release({kHbm, target}));
  twice[0].to.slot = twice[1].to.slot = kNoSlot;

  const Ticket ticket = world.engine().submit(moves, out);
  CHECK(out[0].job != 0);
  CHECK(out[1].job != 0);
  CHECK(out[2].job == 0);
  CHECK(out[2].reason == Reason::kNoEvictable);  // both slots are being filled
  REQUIRE(world.engine().wait(ticket, kLong));
  CHECK(world.intact({kHbm, out[0].slot}, 0));
  CHECK(world.intact({kHbm, out[1].slot}, 1));
  world.validate();
}

TEST_CASE("Queued moves can be cancelled, their pages stay where they were") {
  Gate gate;
  World world(one_load_at_a_time(gate));
  std::vector<JobId> ids;
  std::vector<Place> places;
  for (PageId p = 0; p < 4; ++p) {
    places.push_back(world.make(kHost, p));
    ids.push_back(world.submit(move_of(p, places.back(), {kHbm, kNoSlot})).job);
    REQUIRE(ids.back() != 0);
  }
  CHECK(world.engine().cancel(std::span(ids).subspan(2)) == 2);
  CHECK(world.engine().cancel(std::span(ids).subspan(2)) == 0);
  CHECK(world.engine().cancel(std::vector<JobId>{12345}) == 0);
  gate.open = true;
  REQUIRE(world.engine().wait_all(kLong));
  std::map<JobId, Code> seen;
  for (int i = 0; i < 4; ++i) {
    const MoveResult r = world.next_result();
    seen[r.job] = r.code;
  }
  CHECK(seen[ids[0]] == Code::kOk);
  CHECK(seen[ids[1]] == Code::kOk);
  CHECK(seen[ids[2]] == Code::kCancelled);
  CHECK(seen[ids[3]] == Code::kCancelled);
  for (PageId p = 0; p < 4; ++p) CHECK(world.intact(places[p], p));
  CHECK(world.engine().tier(kHbm).slots().usage().held == 2);
  world.validate();
}

TEST_CASE("A destination may be dropped while its page is on the way") {
  const bool cancelled = GENERATE(false, true);
  WorldConfig config;
  config.hbm = 1;
  World world(config);
  const Place host = world.make(kHost, 1);
  auto writer = world.engine().lease(host, LeaseMode::kWrite);  // holds the move back
  REQUIRE(writer);
  const Submission out = world.submit(move_of(1, host, {kHbm, kNoSlot}));
  REQUIRE(out.job != 0);
  REQUIRE(world.engine().release({kHbm, out.slot}));
  // Somebody else gets the room before the first move ends, and must keep it whatever becomes of
  // that.
  SlotId taken = kNoSlot;
  REQUIRE(world.engine().tier(kHbm).slots().allocate_behind_readers({&taken, 1}));
  REQUIRE(taken == out.slot);
  if (cancelled) REQUIRE(world.engine().cancel({&out.job, 1}) == 1);
  writer->end();
  REQUIRE(world.engine().wait_all(kLong));
  CHECK(world.next_result().code == (cancelled ? Code::kCancelled : Code::kOk));
  CHECK(world.engine().tier(kHbm).slots().usage().held == 1);
  const Place second = world.make(kHost, 2);
  CHECK(world.run(move_of(2, second, {kHbm, taken})).code == Code::kOk);
  CHECK(world.intact({kHbm, taken}, 2));
  CHECK(world.intact(host, 1));
  world.validate();
}

TEST_CASE("An urgent move overtakes background moves that wait") {
  Gate gate;
  World world(one_load_at_a_time(gate));
  for (PageId p = 0; p < 4; ++p) {
    REQUIRE(world.submit_load(p).job != 0);
  }
  PageMove urgent = move_of(9, world.make(kHost, 9), {kHbm, kNoSlot});
  urgent.urgency = Urgency::kUrgent;
  REQUIRE(world.submit(urgent).job != 0);
  gate.open = true;
  REQUIRE(world.engine().wait_all(kLong));
  std::vector<PageId> order(5);
  for (PageId& page : order) page = world.next_result().page;
  // The first had started; the mover may still let the urgent one pass.
  CHECK((order[0] == 9 || order[1] == 9));
  std::erase(order, PageId{9});
  CHECK(order == std::vector<PageId>{0, 1, 2, 3});
}

TEST_CASE("A step's byte budget is kept on the link, and the next step goes on") {
  WorldConfig config;
  config.limits.step_budget = 2 * 4096;
  World world(config);
  for (PageId p = 0; p < 5; ++p) {
    REQUIRE(world.submit_load(p).job != 0);
  }
  std::size_t moved = 0;
  for (const std::size_t after : {2U, 4U, 5U}) {
    while (world.engine().stats().finished < after) {
      MoveResult result;
      moved += world.engine().poll({&result, 1});
    }
    for (int i = 0; i < 50; ++i) world.engine().poll({});
    CHECK(world.engine().stats().finished == after);
    world.engine().begin_step();
  }
  CHECK(world.engine().wait_all(kLong));
}

TEST_CASE("A queue that is full pushes back on background stores") {
  Gate gate;
  WorldConfig config = one_load_at_a_time(gate);
  config.limits.queue_limit = 2 * 4096;
  World world(config);
  std::vector<Submission> out;
  for (PageId p = 0; p < 5; ++p) {
    out.push_back(world.submit_load(p));
  }
  // One is started, two wait.
  CHECK(out[2].job != 0);
  CHECK(out[3].reason == Reason::kLowerTierBusy);
  CHECK(out[4].reason == Reason::kLowerTierBusy);
  CHECK(world.engine().stats().refused[static_cast<std::size_t>(Reason::kLowerTierBusy)] == 2);
  gate.open = true;
  REQUIRE(world.engine().wait_all(kLong));
}

TEST_CASE("Moves that wait for a lease count against their link's queue") {
  WorldConfig config;
  config.limits.queue_limit = 2 * 4096;
  World world(config);
  std::vector<Lease> writers;
  std::vector<Submission> out;
  for (PageId p = 0; p < 4; ++p) {
    const Place host = world.make(kHost, p);
    auto writer = world.engine().lease(host, LeaseMode::kWrite);
    REQUIRE(writer);
    writers.push_back(*std::move(writer));
    out.push_back(world.submit(move_of(p, host, {kHbm, kNoSlot})));
  }
  CHECK(out[1].job != 0);
  CHECK(out[2].reason == Reason::kLowerTierBusy);
  CHECK(out[3].reason == Reason::kLowerTierBusy);
  CHECK(world.engine().cancel({&out[0].job, 1}) == 1);
  CHECK(world.submit(move_of(3, {kHost, 3}, {kHbm, kNoSlot})).job != 0);
  writers.clear();
  REQUIRE(world.engine().wait_all(kLong));
  CHECK(world.submit(move_of(2, {kHost, 2}, {kHbm, kNoSlot})).job != 0);
  REQUIRE(world.engine().wait_all(kLong));
}

TEST_CASE("Shut-down is bounded, ordered, and says who is in the way") {
  Gate gate;
  World world(one_load_at_a_time(gate));
  for (PageId p = 0; p < 3; ++p) {
    REQUIRE(world.submit_load(p).job != 0);
  }
  const Status stuck = world.engine().shutdown(1'000'000);
  REQUIRE_FALSE(stuck);
  CHECK(stuck.error().reason == Reason::kPending);
  const Place late = world.make(kHost, 8);
  CHECK(world.submit(move_of(8, late, {kHbm, kNoSlot})).code == Code::kCancelled);
  gate.open = true;
  auto lease = world.engine().lease(late, LeaseMode::kRead);
  REQUIRE(lease);
  CHECK(world.engine().shutdown(kLong).error().reason == Reason::kLeased);
  lease->end();
  CHECK(world.engine().shutdown(kLong));
  CHECK(world.engine().stats().cancelled == 2);
  CHECK(world.engine().stats().finished == 1);
}

TEST_CASE("The event ring is bounded and counts what it dropped") {
  WorldConfig config;
  World world(config);
  const Place host = world.make(kHost, 1);
  const Place hbm{kHbm, world.take(kHbm)};
  constexpr std::size_t kMoves = 5000;
  for (std::size_t i = 0; i < kMoves; ++i)
    CHECK(world.run(move_of(1, host, hbm)).code == Code::kOk);
  std::vector<TransferEvent> events(kMoves);
  const std::size_t kept = world.engine().take_events(events);
  CHECK(kept == 4096);
  CHECK(world.engine().stats().events_dropped == kMoves - kept);
  CHECK(events[0].page == 1);
  CHECK(events[0].submitted_ns <= events[0].started_ns);
  CHECK(events[0].started_ns <= events[0].ended_ns);
  CHECK(events[0].bytes == 4096);
}

TEST_CASE("Parts that do not fit together are refused at creation") {
  HostEngineConfig config;
  config.page_bytes = 4096;
  CHECK_FALSE(make_host_engine(config));
  config.memory = {{"hbm", 4, {}}, {"host", 4, {}}};
  REQUIRE(make_host_engine(config));
  config.links = {{"nowhere", 0, 5, {}, {}}};
  CHECK(make_host_engine(config).error().reason == Reason::kOutOfRange);
  config.links = {{"wrong mover", 0, 1, {}, 3}};
  CHECK(make_host_engine(config).error().code == Code::kUnsupported);
}

TEST_CASE("A host engine links neighbours and carries its notices") {
  TemporaryDirectory directory;
  HostEngineConfig config;
  config.page_bytes = 4096;
  config.memory = {{"hbm", 4, {}}, {"host", 8, 999}};
  PageFileConfig file;
  file.name = "nvme";
  file.path = directory.path();
  file.pages = 16;
  config.files = {file};
  config.use_uring = GENERATE(true, false);
  auto engine = make_host_engine(config);
  REQUIRE(engine);
  CHECK((*engine)->link(0, 1));
  CHECK((*engine)->link(2, 1));
  CHECK_FALSE((*engine)->link(0, 2));
  const EngineStats stats = (*engine)->stats();
  bool bound = true;
  for (const std::string& notice : stats.notices) bound &= notice.find("NUMA") == std::string::npos;
  CHECK_FALSE(bound);
  CHECK(stats.links[0].name == "hbm to host");
  if (!config.use_uring) CHECK(stats.links[3].mover == "file_pread");
}
