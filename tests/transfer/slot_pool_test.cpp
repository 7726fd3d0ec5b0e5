// SPDX-License-Identifier: Apache-2.0
#include "transfer/slot_pool.hpp"

#include <atomic>
#include <csignal>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "transfer/arena.hpp"

using namespace lehr;
using namespace lehr::transfer;

namespace {

std::unique_ptr<SlotPool> pool_of(SlotId slots, bool guard = true) {
  auto pool = SlotPool::create({slots, 4, guard});
  REQUIRE(pool);
  return *std::move(pool);
}

SlotId take(SlotPool& pool) {
  SlotId slot = kNoSlot;
  REQUIRE(pool.allocate({&slot, 1}));
  return slot;
}

Lease lease(SlotPool& pool, SlotId slot, LeaseMode mode) {
  auto made = pool.lease(slot, mode);
  REQUIRE(made);
  return *std::move(made);
}

}  // namespace

TEST_CASE("Exact fit is granted, one more is refused and changes nothing") {
  auto pool = pool_of(5);
  std::vector<SlotId> all(5);
  REQUIRE(pool->allocate(all));
  const SlotUsage before = pool->usage();
  SlotId more = kNoSlot;
  const Status refused = pool->allocate({&more, 1});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kRefused);
  CHECK(refused.error().reason == Reason::kOverBudget);
  CHECK(more == kNoSlot);
  const SlotUsage after = pool->usage();
  CHECK(after.free == before.free);
  CHECK(after.held == before.held);
  CHECK(pool->validate());
}

TEST_CASE("Nothing evictable: every slot leased is said at once") {
  auto pool = pool_of(3);
  std::vector<SlotId> all(3);
  REQUIRE(pool->allocate(all));
  std::vector<Lease> leases;
  for (const SlotId s : all) leases.push_back(lease(*pool, s, LeaseMode::kRead));
  SlotId more = kNoSlot;
  CHECK(pool->allocate({&more, 1}).error().reason == Reason::kNoEvictable);
  // The control: with one slot unleased the caller could evict, and is told so.
  leases.pop_back();
  CHECK(pool->allocate({&more, 1}).error().reason == Reason::kOverBudget);
  REQUIRE(pool->release(all[2]));
  CHECK(pool->allocate({&more, 1}));
  CHECK(pool->validate());
}

TEST_CASE("A slot released under a lease is free only after the last lease") {
  auto pool = pool_of(1);
  const SlotId slot = take(*pool);
  Lease first = lease(*pool, slot, LeaseMode::kRead);
  Lease second = lease(*pool, slot, LeaseMode::kRead);
  REQUIRE(pool->release(slot));
  CHECK(pool->usage().retiring == 1);
  SlotId again = kNoSlot;
  CHECK_FALSE(pool->allocate({&again, 1}));
  first.end();
  CHECK_FALSE(pool->allocate({&again, 1}));
  CHECK_FALSE(pool->lease(slot, LeaseMode::kRead));
  second.end();
  CHECK(pool->usage().free == 1);
  CHECK(pool->allocate({&again, 1}));
  CHECK(pool->validate());
}

TEST_CASE("Control: without the guard a leased slot is handed out again") {
  auto pool = pool_of(1, false);
  const SlotId slot = take(*pool);
  Lease reader = lease(*pool, slot, LeaseMode::kRead);
  REQUIRE(pool->release(slot));
  SlotId again = kNoSlot;
  CHECK(pool->allocate({&again, 1}));
  CHECK(again == slot);
}

TEST_CASE("Readers and a writer take turns in the order in which they asked") {
  auto pool = pool_of(2);
  const SlotId slot = take(*pool);
  Lease early = lease(*pool, slot, LeaseMode::kRead);
  Lease writer = lease(*pool, slot, LeaseMode::kWrite);
  Lease late = lease(*pool, slot, LeaseMode::kRead);
  CHECK(early.ready());
  CHECK_FALSE(writer.ready());
  CHECK_FALSE(late.ready());
  CHECK(pool->lease(slot, LeaseMode::kWrite).error().reason == Reason::kLeased);
  CHECK(pool->lease_now(slot, LeaseMode::kRead).error().reason == Reason::kPending);
  early.end();
  CHECK(writer.ready());
  CHECK_FALSE(late.ready());
  CHECK(pool->take_event());
  writer.end();
  CHECK(late.ready());
  CHECK(pool->lease_now(slot, LeaseMode::kRead));
  CHECK(pool->leases_on(slot) == 1);
  CHECK(pool->validate());
}

TEST_CASE("A slot on which somebody got a turn is named once, and one where nobody waits never") {
  auto pool = pool_of(3);
  const SlotId a = take(*pool), b = take(*pool);
  std::vector<SlotId> turned;
  Lease first = lease(*pool, a, LeaseMode::kRead), second = lease(*pool, a, LeaseMode::kRead);
  Lease writer = lease(*pool, a, LeaseMode::kWrite);
  Lease later = lease(*pool, a, LeaseMode::kRead);
  first.end();
  pool->take_turned(turned);
  CHECK(turned.empty());  // a reader is left
  second.end();
  pool->take_turned(turned);
  CHECK(turned == std::vector<SlotId>{a});
  CHECK(writer.ready());
  turned.clear();
  writer.end();
  Lease alone = lease(*pool, b, LeaseMode::kWrite);
  alone.end();  // frees its slot for nobody in particular
  Lease again = lease(*pool, a, LeaseMode::kWrite);
  later.end();
  CHECK(again.ready());
  pool->take_turned(turned);
  CHECK(turned == std::vector<SlotId>{a});  // twice a turn, once a name
  CHECK(pool->take_event());
  turned.clear();
  pool->take_turned(turned);
  CHECK(turned.empty());
}

TEST_CASE("A reader that gives up before its turn leaves no trace") {
  auto pool = pool_of(1);
  const SlotId slot = take(*pool);
  Lease writer = lease(*pool, slot, LeaseMode::kWrite);
  { const Lease late = lease(*pool, slot, LeaseMode::kRead); }
  writer.end();
  CHECK(pool->leases_on(slot) == 0);
  CHECK(pool->lease_now(slot, LeaseMode::kWrite));
  CHECK(pool->validate());
}

TEST_CASE("A retiring slot can be taken behind its readers, once") {
  auto pool = pool_of(2);
  std::vector<SlotId> all(2);
  REQUIRE(pool->allocate(all));
  Lease reader = lease(*pool, all[1], LeaseMode::kRead);
  REQUIRE(pool->release(all[1]));
  SlotId slot = kNoSlot;
  REQUIRE(pool->allocate_behind_readers({&slot, 1}));
  CHECK(slot == all[1]);
  SlotId more = kNoSlot;
  CHECK_FALSE(pool->allocate_behind_readers({&more, 1}));
  Lease writer = lease(*pool, slot, LeaseMode::kWrite);
  CHECK_FALSE(writer.ready());
  reader.end();
  CHECK(writer.ready());
  CHECK(pool->usage().held == 2);
  CHECK(pool->validate());
}

TEST_CASE("A slot that retires again and again is listed once") {
  auto pool = pool_of(2);
  const SlotId slot = take(*pool);
  SlotId current = slot;
  for (int i = 0; i < 300; ++i) {
    Lease reader = lease(*pool, current, LeaseMode::kRead);
    REQUIRE(pool->release(current));
    if (i % 2 == 0) {
      reader.end();
      current = take(*pool);
    } else {
      SlotId other = kNoSlot;
      std::vector<SlotId> both(2);
      REQUIRE(pool->allocate_behind_readers(both));
      CHECK(both[0] != both[1]);
      reader.end();
      REQUIRE(pool->release(both[0]));
      REQUIRE(pool->release(both[1]));
      REQUIRE(pool->allocate({&other, 1}));
      current = other;
    }
    REQUIRE(pool->validate());
  }
}

TEST_CASE("Wrong slots are refused, never followed") {
  auto pool = pool_of(2);
  CHECK(pool->release(0).error().code == Code::kInvalid);
  CHECK(pool->release(99).error().code == Code::kInvalid);
  CHECK(pool->lease(1, LeaseMode::kRead).error().code == Code::kInvalid);
  CHECK(pool->claim(9).error().code == Code::kInvalid);
  REQUIRE(pool->claim(1));
  CHECK(pool->claim(1).error().code == Code::kInvalid);
  CHECK_FALSE(SlotPool::create({0, 1}));
  CHECK(pool->validate());
}

TEST_CASE("Destroying a pool with a live lease is a checked error") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    ::close(STDERR_FILENO);
    auto pool = SlotPool::create({1, 1});
    SlotId slot = kNoSlot;
    if (!pool || !(*pool)->allocate({&slot, 1})) ::_exit(1);
    auto held = (*pool)->lease(slot, LeaseMode::kRead);
    pool->reset();
    ::_exit(2);  // reached only when nobody checked
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

TEST_CASE("Slots past the limit leave circulation as they become free, and come back") {
  auto pool = pool_of(10);
  std::vector<SlotId> all(10);
  REQUIRE(pool->allocate(all));
  REQUIRE(pool->release(8));
  Lease reader = lease(*pool, 6, LeaseMode::kRead);
  Lease other = lease(*pool, 7, LeaseMode::kRead);
  REQUIRE(pool->release(6));  // retires: somebody still reads it
  pool->set_limit(5);
  CHECK(pool->validate());
  CHECK(pool->limit() == 5);
  // Held: 5, 7, 9; leased after its release: 6. The free one went at once.
  CHECK(pool->in_use_past_limit() == 4);
  CHECK(pool->usage().withheld == 2);
  SlotId slot = kNoSlot;
  CHECK_FALSE(pool->allocate({&slot, 1}));
  CHECK_FALSE(pool->allocate_behind_readers({&slot, 1}));
  for (const SlotId held : {5U, 7U, 9U}) REQUIRE(pool->release(held));
  CHECK(pool->in_use_past_limit() == 2);
  reader.end();
  other.end();
  CHECK(pool->in_use_past_limit() == 0);
  CHECK(pool->usage().withheld == 5);
  CHECK(pool->usage().free == 0);
  CHECK(pool->validate());
  REQUIRE(pool->release(2));
  CHECK(take(*pool) == 2);
  pool->set_limit(100);  // no more than there are
  CHECK(pool->limit() == 10);
  CHECK(pool->usage().free == 5);
  CHECK(pool->usage().withheld == 0);
  CHECK(pool->validate());
}

TEST_CASE(
    "A slot that left under a lease may be taken behind its reader once the limit is raised") {
  auto pool = pool_of(2);
  std::vector<SlotId> all(2);
  REQUIRE(pool->allocate(all));
  Lease reader = lease(*pool, 1, LeaseMode::kRead);
  pool->set_limit(1);
  REQUIRE(pool->release(1));
  SlotId slot = kNoSlot;
  CHECK_FALSE(pool->allocate_behind_readers({&slot, 1}));
  pool->set_limit(2);
  REQUIRE(pool->allocate_behind_readers({&slot, 1}));
  CHECK(slot == 1);
  Lease writer = lease(*pool, 1, LeaseMode::kWrite);
  CHECK_FALSE(writer.ready());
  reader.end();
  CHECK(writer.ready());
  CHECK(pool->validate());
}

TEST_CASE("Writers exclude each other and readers under threads") {
  auto pool = pool_of(1);
  const SlotId slot = take(*pool);
  int value = 0;  // guarded by the leases alone
  std::atomic<int> torn{0};
  const auto work = [&](bool writes) {
    for (int i = 0; i < 2000;) {
      auto mine = pool->lease_now(slot, writes ? LeaseMode::kWrite : LeaseMode::kRead);
      if (!mine) {
        std::this_thread::yield();
        continue;
      }
      if (writes) {
        ++value;
        ++value;
      } else if (value % 2 != 0) {
        ++torn;
      }
      ++i;
    }
  };
  { std::jthread a(work, true), b(work, true), c(work, false); }
  CHECK(value == 8000);
  CHECK(torn == 0);
  CHECK(pool->usage().leases == 0);
}

TEST_CASE("An arena takes exactly its region, and one page more is refused") {
  ArenaConfig config;
  config.name = "hbm";
  config.pages = 3;
  config.page_bytes = 5000;  // no multiple of the alignment
  CHECK(Arena::bytes_for(config) == 3 * 8192);
  HostMemoryConfig memory;
  memory.bytes = 3 * 8192;
  memory.numa_node = 4000;  // no machine has it: bound nowhere, and said so
  auto region = host_region(memory);
  REQUIRE(region);
  CHECK(region->notices.size() == 1);
  auto arena = Arena::create(config, *region);
  REQUIRE(arena);
  CHECK((*arena)->page(2).size() == 5000);
  CHECK((*arena)->address(2).pointer == region->base + 2 * 8192);
  CHECK((*arena)->footprint_bytes() == 3 * 8192);
  config.pages = 4;
  const auto refused = Arena::create(config, *region);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kOverBudget);
}
