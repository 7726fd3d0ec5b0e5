// SPDX-License-Identifier: Apache-2.0
// Failures that were reported against systems of this kind, as small inputs. Each has a control
// that shows the failure when the guard against it is switched off.
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>

#include "tests/transfer/transfer_world.hpp"
#include "transfer/page_file.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

Lease lease(World& world, Place place, LeaseMode mode) {
  auto made = world.engine().lease(place, mode);
  REQUIRE(made);
  return *std::move(made);
}

/// A thread that reads, or fills, a leased page when it is told to.
class Worker {
 public:
  void read(Lease lease, std::span<const std::byte> bytes, PageId page, bool& right) {
    thread_ = std::jthread([this, lease = std::move(lease), bytes, page, &right]() mutable {
      points_.await("go");
      right = is_filled(bytes, page, 1);
      lease.end();
    });
  }
  void write(Lease lease, std::span<std::byte> bytes, PageId page) {
    thread_ = std::jthread([this, lease = std::move(lease), bytes, page]() mutable {
      points_.await("go");
      fill(bytes, page, 1);
      lease.end();
    });
  }
  void go() { points_.reach("go"); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  SeqPoints points_;
  std::jthread thread_;
};

/// One round of "a slot is loaded into while it is still being read". Whether the reader saw its
/// page.
bool reuse_round(World& world, PageId round, bool guarded) {
  const PageId a = round * 4, b = a + 1, c = a + 2;
  const Place p = world.make(kHbm, a);
  const Place source = world.make(kHost, b);
  const Place other = world.make(kHost, c);
  const Place elsewhere{kHost, world.take(kHost)};

  bool right = false;
  Worker reader;
  reader.read(lease(world, p, LeaseMode::kRead), world.bytes(p), a, right);
  REQUIRE(world.engine().release(p));
  const PageMove load = move_of(b, source, {kHbm, kNoSlot});
  Submission out;
  const Ticket ticket = world.engine().submit({&load, 1}, {&out, 1});
  REQUIRE(out.job != 0);
  REQUIRE(out.slot == p.slot);
  // Others are not delayed by it.
  const Place file{kNvme, world.take(kNvme)};
  const PageMove free_move = move_of(c, other, file);
  Submission unrelated;
  const Ticket open = world.engine().submit({&free_move, 1}, {&unrelated, 1});
  REQUIRE(world.engine().wait(open, kLong));
  if (guarded) {
    CHECK(world.engine().wait(ticket, 0).error().reason == Reason::kPending);
  } else {
    REQUIRE(world.engine().wait(ticket, kLong));
  }
  reader.go();
  reader.join();
  REQUIRE(world.engine().wait(ticket, kLong));
  CHECK(world.intact({kHbm, out.slot}, b));
  for (int i = 0; i < 2; ++i) CHECK(world.next_result().code == Code::kOk);
  for (const Place place : {Place{kHbm, out.slot}, source, other, elsewhere, file}) {
    REQUIRE(world.engine().release(place));
  }
  return right;
}

}  // namespace

TEST_CASE("Case: a slot is not loaded into before its last reader is done") {
  World world;
  std::vector<Place> busy;
  for (PageId i = 0; i < 7; ++i) busy.push_back(world.make(kHbm, 1'000'000 + i));
  for (PageId round = 0; round < 200; ++round) REQUIRE(reuse_round(world, round, true));
  for (PageId i = 0; i < 7; ++i) CHECK(world.intact(busy[i], 1'000'000 + i));
  world.validate();
}

TEST_CASE("Control: without leases the reader sees the next page") {
  World world(with_plan("off=leases"));
  for (PageId i = 0; i < 7; ++i) world.make(kHbm, 1'000'000 + i);
  CHECK_FALSE(reuse_round(world, 1, false));
}

TEST_CASE("Case: a store waits for the writer of its page") {
  const bool guarded = GENERATE(true, false);
  World world(guarded ? WorldConfig{} : with_plan("off=leases"));
  for (PageId round = 0; round < (guarded ? 200U : 1U); ++round) {
    const Place p = world.make(kHbm, round);
    fill(world.bytes(p), 77, 77);  // not yet written
    Worker writer;
    writer.write(lease(world, p, LeaseMode::kWrite), world.bytes(p), round);
    const PageMove store = move_of(round, p, {kHost, kNoSlot});
    Submission out;
    const Ticket ticket = world.engine().submit({&store, 1}, {&out, 1});
    REQUIRE(out.job != 0);
    if (!guarded) REQUIRE(world.engine().wait(ticket, kLong));
    writer.go();
    writer.join();
    REQUIRE(world.engine().wait(ticket, kLong));
    CHECK(world.next_result().code == Code::kOk);
    CHECK(world.intact({kHost, out.slot}, round) == guarded);
    REQUIRE(world.engine().release(p));
    REQUIRE(world.engine().release({kHost, out.slot}));
  }
  world.validate();
}

TEST_CASE("Case: a source is not reclaimed during its copy") {
  const bool guarded = GENERATE(true, false);
  Gate gate;
  WorldConfig config = guarded ? WorldConfig{} : with_plan("off=leases");
  config.host = 4;
  config.gate = &gate;
  World world(config);
  std::vector<Place> host;
  for (PageId p = 0; p < 4; ++p) host.push_back(world.make(kHost, p));
  std::vector<Place> fresh;
  for (PageId p = 10; p < 14; ++p) fresh.push_back(world.make(kHbm, p));

  gate.open = false;
  const Submission load = world.submit(move_of(2, host[2], {kHbm, kNoSlot}));
  REQUIRE(load.job != 0);
  // The policy reclaims that very page right after the call, and demotes new ones into the room.
  REQUIRE(world.engine().release(host[2]));
  std::vector<PageMove> demotions;
  for (PageId p = 0; p < 4; ++p) demotions.push_back(move_of(10 + p, fresh[p], {kHost, kNoSlot}));
  std::vector<Submission> out(4);
  const Ticket ticket = world.engine().submit(demotions, out);
  // One waits behind the copy, for the others there is no room: said at once.
  REQUIRE(out[0].job != 0);
  for (int i = 1; i < 4; ++i) CHECK(out[static_cast<std::size_t>(i)].reason == Reason::kOverBudget);
  if (!guarded) REQUIRE(world.engine().wait(ticket, kLong));
  gate.open = true;
  REQUIRE(world.engine().wait_all(kLong));
  const bool load_right = is_filled(world.bytes({kHbm, load.slot}), 2, 1);
  CHECK(load_right == guarded);
  CHECK(world.intact({kHost, out[0].slot}, 10));
  CHECK(world.engine().tier(kHost).slots().leases_on(host[2].slot) == 0);
  world.validate();
}

TEST_CASE("Case: nothing evictable is an error at once, not a spin") {
  WorldConfig config;
  config.host = 3;
  World world(config);
  std::vector<Lease> leases;
  for (PageId p = 0; p < 3; ++p) {
    leases.push_back(lease(world, world.make(kHost, p), LeaseMode::kRead));
  }
  SlotId slot = kNoSlot;
  const Status refused = world.engine().allocate(kHost, {&slot, 1});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kNoEvictable);
  const Place hbm = world.make(kHbm, 9);
  CHECK(world.submit(move_of(9, hbm, {kHost, kNoSlot})).reason == Reason::kNoEvictable);
  CHECK(world.engine().stats().refused[static_cast<std::size_t>(Reason::kNoEvictable)] == 2);
  leases.clear();
  CHECK(world.submit(move_of(9, hbm, {kHost, kNoSlot})).reason == Reason::kOverBudget);
  world.validate();
}

namespace {

/// Write-through of chains of pages: HBM over host over disk, each page dropped above only when it
/// is on disk. A step is four pages; the disk takes `stores_per_step` of them. `trusting` drops a
/// page when its store was asked for, whatever became of that.
struct WriteThrough {
  static constexpr SlotId kHbmPages = 668, kHostPages = 423, kDiskPages = 2000;
  World world;
  bool trusting;
  std::deque<std::pair<PageId, Place>> in_hbm, in_host;
  std::map<PageId, Place> on_disk;
  std::size_t slowed = 0;

  static WorldConfig config(unsigned stores_per_step) {
    WorldConfig c;
    c.hbm = kHbmPages;
    c.host = kHostPages;
    c.nvme = kDiskPages;
    c.store_limits.emplace();
    c.store_limits->queue_limit = Bytes{64} * 4096;
    c.store_limits->step_budget = Bytes{stores_per_step} * 4096;
    return c;
  }
  WriteThrough(unsigned stores_per_step, bool trust)
      : world(config(stores_per_step)), trusting(trust) {}

  /// Lets steps pass until all that was accepted is done.
  void drain() {
    while (world.engine().stats().unfinished != 0) {
      world.engine().begin_step();
      world.engine().poll({});
    }
    MoveResult r;
    while (world.engine().poll({&r, 1}) == 1) {
      REQUIRE(r.code == Code::kOk);
      if (r.to.tier == kNvme) on_disk[r.page] = r.to;
    }
  }
  /// Room in a memory tier: the oldest page leaves it.
  void make_room(TierId tier) {
    auto& oldest = tier == kHbm ? in_hbm : in_host;
    const SlotId limit = tier == kHbm ? kHbmPages : kHostPages;
    while (world.engine().tier(tier).slots().usage().held == limit) {
      const auto [page, place] = oldest.front();
      if (trusting || on_disk.count(page) == 0) {
        ++slowed;
        drain();
        REQUIRE((trusting || on_disk.count(page) == 1));
      }
      oldest.pop_front();
      REQUIRE(world.engine().release(place));
    }
  }
  void store(PageId page, Place host) {
    const PageMove move = move_of(page, host, {kNvme, kNoSlot});
    const Submission out = world.submit(move);
    if (out.job != 0) return;
    REQUIRE(out.reason == Reason::kLowerTierBusy);
    if (trusting) return;
    ++slowed;
    drain();
    REQUIRE(world.submit(move).job != 0);
  }
  void append(PageId page) {
    if (page % 4 == 0) world.engine().begin_step();
    make_room(kHbm);
    const Place hbm = world.make(kHbm, page);
    in_hbm.emplace_back(page, hbm);
    make_room(kHost);
    const PageMove move = move_of(page, hbm, {kHost, kNoSlot});
    Submission down;
    const Ticket ticket = world.engine().submit({&move, 1}, {&down, 1});
    REQUIRE(down.job != 0);
    REQUIRE(world.engine().wait(ticket, kLong));
    in_host.emplace_back(page, Place{kHost, down.slot});
    store(page, in_host.back().second);
  }
  /// Pages of the front of a chain that come back with the right bytes.
  std::size_t durable_prefix(PageId first, std::size_t pages) {
    drain();
    std::size_t whole = 0;
    for (; whole < pages; ++whole) {
      const auto page = static_cast<PageId>(first + whole);
      const auto disk = on_disk.find(page);
      if (disk == on_disk.end()) break;
      make_room(kHost);
      const MoveResult up = world.run(move_of(page, disk->second, {kHost, kNoSlot}));
      if (up.code != Code::kOk || !world.intact(up.to, page)) break;
      REQUIRE(world.engine().release(up.to));
    }
    return whole;
  }
};

}  // namespace

TEST_CASE("Case: what was written through is all there, or the writer was slowed") {
  const unsigned stores_per_step = GENERATE(4U, 1U);
  WriteThrough run(stores_per_step, false);
  for (PageId page = 0; page < 5 * 250; ++page) run.append(page);
  CHECK(run.durable_prefix(0, 250) == 250);
  if (stores_per_step == 1) {
    CHECK(run.slowed != 0);
    CHECK(run.world.engine().stats().refused[static_cast<std::size_t>(Reason::kLowerTierBusy)] !=
          0);
  }
  run.world.validate();
}

TEST_CASE("Control: a writer that trusts every submission loses pages without a word") {
  WriteThrough run(1, true);
  for (PageId page = 0; page < 5 * 250; ++page) run.append(page);
  CHECK(run.durable_prefix(0, 250) < 250);
}

TEST_CASE("Case: a page whose file was replaced under it fails once and is a miss after") {
  TemporaryDirectory directory;
  const bool guarded = GENERATE(true, false);
  WorldConfig config = guarded ? WorldConfig{} : with_plan("off=checksum");
  config.kept_file = directory.file("pages");
  World world(config);
  const Place host = world.make(kHost, 3);
  const MoveResult stored = world.run(move_of(3, host, {kNvme, kNoSlot}));
  REQUIRE(stored.code == Code::kOk);
  // Bytes of the same size, even of the same page at an older version.
  std::vector<std::byte> foreign(4096);
  fill(foreign, 3, 0);
  const int fd = ::open(config.kept_file.c_str(), O_RDWR);
  REQUIRE(fd >= 0);
  REQUIRE(::pwrite(fd, foreign.data(), foreign.size(),
                   static_cast<off_t>(world.engine().tier(kNvme).address(stored.to.slot).offset)) ==
          4096);
  REQUIRE(::fsync(fd) == 0);
  ::close(fd);

  const MoveResult first = world.run(move_of(3, stored.to, {kHost, kNoSlot}));
  if (!guarded) {
    CHECK(first.code == Code::kOk);
    CHECK_FALSE(is_filled(world.bytes(first.to), 3, 1));
    return;
  }
  CHECK(first.code == Code::kCorrupt);
  CHECK(first.reason == Reason::kChecksum);
  CHECK(world.engine().stats().checksum_failures == 1);
  const Bytes read = world.engine().stats().links[3].bytes[static_cast<std::size_t>(Cause::kOther)];
  const MoveResult second = world.run(move_of(3, stored.to, {kHost, kNoSlot}));
  CHECK(second.reason == Reason::kGeneration);
  CHECK(world.engine().stats().links[3].bytes[static_cast<std::size_t>(Cause::kOther)] == read);
  CHECK(world.intact(host, 3));
  CHECK(world.engine().tier(kHost).slots().usage().held == 1);
  world.validate();
}

TEST_CASE("Case: a file that was cut fails once and is a miss after") {
  TemporaryDirectory directory;
  WorldConfig config;
  config.kept_file = directory.file("pages");
  config.use_uring = GENERATE(true, false);
  World world(config);
  const MoveResult stored = world.run(move_of(3, world.make(kHost, 3), {kNvme, kNoSlot}));
  REQUIRE(::truncate(config.kept_file.c_str(), 4096) == 0);
  CHECK(world.run(move_of(3, stored.to, {kHost, kNoSlot})).reason == Reason::kTruncated);
  CHECK(world.run(move_of(3, stored.to, {kHost, kNoSlot})).reason == Reason::kGeneration);
  world.validate();
}

namespace {

/// 300 chunks through a tier that ends at 63 of them, with a reader that asks for old chunks at the
/// place where it last saw them.
struct DiskWithAnEnd {
  static constexpr SlotId kChunks =
      63;  // with the header and no index: 63 extents of 1 MiB and 4 KiB
  static constexpr Bytes kLimit = 64 * kMiB;

  std::size_t right = 0, missed = 0, foreign = 0;
  PageId oldest = 0;

  explicit DiskWithAnEnd(WorldConfig config) {
    config.page_bytes = kMiB;
    config.hbm = 1;
    config.host = 2;
    config.nvme = kChunks;
    World world(config);
    REQUIRE(world.engine().tier(kNvme).footprint_bytes() <= kLimit);
    const Place incoming = world.make(kHost, 0);
    for (PageId chunk = 0; chunk < 300; ++chunk) {
      fill(world.bytes(incoming), chunk, 1);
      REQUIRE(world.engine().stamp(incoming, chunk, 1));
      store(world, chunk, incoming);
      read(world, chunk - chunk % 100);
    }
    oldest = chunks_.front().first;
    world.validate();
  }

 private:
  void store(World& world, PageId chunk, Place incoming) {
    Submission out = world.submit(move_of(chunk, incoming, {kNvme, kNoSlot}));
    if (out.job == 0) {
      CHECK(out.reason == Reason::kOverBudget);
      REQUIRE(world.engine().release(chunks_.front().second));  // the oldest leaves first
      chunks_.pop_front();
      out = world.submit(move_of(chunk, incoming, {kNvme, kNoSlot}));
    }
    REQUIRE(out.job != 0);
    REQUIRE(world.engine().wait_all(kLong));
    CHECK(world.next_result().code == Code::kOk);
    chunks_.emplace_back(chunk, Place{kNvme, out.slot});
    seen_[chunk] = chunks_.back().second;
    REQUIRE(world.engine().tier(kNvme).slots().usage().held <= kChunks);
  }

  void read(World& world, PageId wanted) {
    const MoveResult got = world.run(move_of(wanted, seen_[wanted], {kHost, kNoSlot}));
    if (got.code != Code::kOk) {
      CHECK(got.reason == Reason::kGeneration);
      ++missed;
      return;
    }
    ++(is_filled(world.bytes(got.to), wanted, 1) ? right : foreign);
    REQUIRE(world.engine().release(got.to));
  }

  std::deque<std::pair<PageId, Place>> chunks_;
  std::map<PageId, Place> seen_;
};

}  // namespace

TEST_CASE("Case: a disk tier has an end, and readers of old chunks get right bytes or a miss") {
  const DiskWithAnEnd run{WorldConfig{}};
  CHECK(run.right > 0);
  CHECK(run.missed > 0);
  CHECK(run.foreign == 0);
  CHECK(run.oldest == 300 - DiskWithAnEnd::kChunks);
}

TEST_CASE("Control: a reader that is not told of a reused slot gets foreign bytes as its own") {
  const DiskWithAnEnd run(with_plan("off=generation"));
  CHECK(run.right > 0);
  CHECK(run.missed == 0);
  CHECK(run.foreign > 0);
}

TEST_CASE("Case: one bad page in a batch fails alone") {
  const bool guarded = GENERATE(true, false);
  World world(with_plan(guarded ? "read#4=bitflip" : "read#4=bitflip; off=checksum"));
  std::vector<PageMove> loads;
  const Place staging = world.make(kHost, 0);
  for (PageId key = 0; key < 10; ++key) {
    fill(world.bytes(staging), key, 1);
    REQUIRE(world.engine().stamp(staging, key, 1));
    const MoveResult stored = world.run(move_of(key, staging, {kNvme, kNoSlot}));
    loads.push_back(move_of(key, stored.to, {kHost, kNoSlot}));
  }
  std::vector<PageId> right, failed, wrong;
  // Seven slots are free: two batches.
  for (const auto part : {std::span(loads).first(5), std::span(loads).subspan(5)}) {
    std::vector<Submission> out(part.size());
    const Ticket ticket = world.engine().submit(part, out);
    REQUIRE(world.engine().wait(ticket, kLong));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const MoveResult r = world.next_result();
      if (r.code != Code::kOk) {
        CHECK(r.reason == Reason::kChecksum);
        failed.push_back(r.page);
        continue;
      }
      (world.intact(r.to, r.page) ? right : wrong).push_back(r.page);
      REQUIRE(world.engine().release(r.to));
    }
  }
  CHECK(right.size() == 9);
  // The control: without the checksum the bad page passes for a good one.
  CHECK(failed == (guarded ? std::vector<PageId>{3} : std::vector<PageId>{}));
  CHECK(wrong == (guarded ? std::vector<PageId>{} : std::vector<PageId>{3}));
  CHECK(world.engine().stats().checksum_failures == (guarded ? 1 : 0));
  CHECK(world.engine().tier(kHost).slots().usage().held == 1);
}
