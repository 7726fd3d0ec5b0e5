// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/directory.hpp"

#include <string>

#include <catch2/catch.hpp>

#include "tests/runtime/directory/placement_world.hpp"

using namespace lehr;
using namespace lehr::directory;
using placement_world::Bookkeeping;
using placement_world::keys_of;

TEST_CASE("a store takes two phases: pending in between, a hit after") {
  Bookkeeping w(4, 0);
  std::vector<Evicted> evicted;
  const auto job = w.store({"a", "b"}, evicted);
  REQUIRE(job);
  CHECK(w.look("a") == ItemState::kPending);
  CHECK(w.look("c") == ItemState::kMiss);
  const Job* j = w.directory.job(*job);
  CHECK(j->moving == 2);
  CHECK(j->items[0].slot == 0);
  CHECK(j->items[1].slot == 1);
  const ItemOutcome outcomes[2] = {{}, {Code::kIo, Reason::kNone, 0, false}};
  REQUIRE(w.directory.complete(*job, outcomes));
  CHECK(w.look("a") == ItemState::kHit);
  CHECK(w.look("b") == ItemState::kMiss);
  CHECK(w.directory.catalog().used(kHostTier) == 1);
  CHECK(w.directory.release(*job));
  CHECK(w.directory.release(*job).error().code == Code::kStale);
}

TEST_CASE("the longest prefix ends at the first key that is no hit") {
  Bookkeeping w(8, 0);
  w.stored({"a", "b", "d"});
  std::vector<LookUp> out(4);
  const auto prefix = w.directory.lookup(w.ns, keys_of({"a", "b", "c", "d"}), out);
  REQUIRE(prefix);
  CHECK(*prefix == 2);
  CHECK(out[3].state == ItemState::kHit);
}

TEST_CASE("keys that are there, being stored, named twice or not wanted are not stored again") {
  Bookkeeping w(8, 0);
  w.stored({"there"});
  std::vector<Evicted> evicted;
  const auto first = w.store({"moving"}, evicted);
  REQUIRE(first);
  std::vector<ItemRequest> items = w.items({"there", "moving", "fresh", "fresh", "secret"});
  items[4].no_store = true;
  const auto second =
      w.directory.prepare_store({w.ns, 0, kNormalPriority, kAllTiers}, items, evicted);
  REQUIRE(second);
  const auto& got = w.directory.job(*second)->items;
  CHECK(got[0].state == ItemState::kPresent);
  CHECK(got[1].state == ItemState::kPending);
  CHECK(got[2].state == ItemState::kMove);
  CHECK(got[3].state == ItemState::kSkipped);
  CHECK(got[4].state == ItemState::kSkipped);
}

TEST_CASE("storing says what was evicted, and never evicts what the same call found present") {
  Bookkeeping w(3, 0);
  w.stored({"a", "b", "c"});
  std::vector<Evicted> evicted;
  const auto job = w.store({"a", "x"}, evicted);  // "a" is the oldest, but named
  REQUIRE(job);
  REQUIRE(evicted.size() == 1);
  CHECK(evicted[0].key == "b");
  CHECK(w.look("a") == ItemState::kHit);
}

TEST_CASE("a refusal leaves the state as it was") {
  Bookkeeping w(2, 0);
  w.stored({"a", "b"});
  const auto lease = w.directory.lease(w.ns, keys_of({"a"}));
  REQUIRE(lease);
  std::vector<Evicted> evicted;
  const std::uint64_t before = w.directory.catalog().digest();
  CHECK(w.store({"x", "y"}, evicted).error().reason == Reason::kNoEvictable);
  CHECK(w.store({"x", "y", "z"}, evicted).error().reason == Reason::kOverBudget);
  CHECK(w.load({"a", "gone"}).error().code == Code::kNotFound);
  CHECK(w.directory.remove(w.ns, "a").error().reason == Reason::kLeased);
  CHECK(w.directory.lease(w.ns, keys_of({"b", "gone"})).error().code == Code::kNotFound);
  CHECK(w.store({std::string(256, 'k')}, evicted).error().code == Code::kInvalid);
  CHECK(w.store({""}, evicted).error().code == Code::kInvalid);
  CHECK(evicted.empty());
  CHECK(w.directory.catalog().digest() == before);
  CHECK(w.directory.release_lease(*lease));
  CHECK(w.store({"x", "y"}, evicted));  // the control: without the lease there is room
}

TEST_CASE("a loaded copy is pinned until its job completes") {
  Bookkeeping w(1, 0);
  w.stored({"a"});
  const auto job = w.load({"a"});
  REQUIRE(job);
  std::vector<Evicted> evicted;
  CHECK(w.store({"b"}, evicted).error().reason == Reason::kNoEvictable);
  REQUIRE(w.directory.complete(*job, std::vector<ItemOutcome>(1)));
  CHECK(w.store({"b"}, evicted));
}

TEST_CASE("a partial load says which keys were missing") {
  Bookkeeping w(4, 0);
  w.stored({"a", "c"});
  LoadRequest request;
  request.ns = w.ns;
  request.partial = true;
  const auto job = w.directory.prepare_load(request, w.items({"a", "b", "c"}));
  REQUIRE(job);
  const auto& items = w.directory.job(*job)->items;
  CHECK(items[0].state == ItemState::kMove);
  CHECK(items[1].state == ItemState::kMiss);
  CHECK(items[2].state == ItemState::kMove);
}

TEST_CASE("a cancelled job gives back all it took") {
  Bookkeeping w(2, 0);
  std::vector<Evicted> evicted;
  const auto job = w.store({"a", "b"}, evicted);
  REQUIRE(w.directory.cancel(*job));
  CHECK(w.directory.catalog().used(kHostTier) == 0);
  CHECK(w.look("a") == ItemState::kMiss);
  CHECK(w.directory.job(*job)->items[0].state == ItemState::kCancelled);
  CHECK_FALSE(w.directory.cancel(*job));
  w.stored({"c"});
  const auto load = w.load({"c"});
  REQUIRE(w.directory.cancel(*load));
  CHECK(w.look("c") == ItemState::kHit);  // a cancelled load says nothing of the copy
}

TEST_CASE("blocks of a pool in use by one job are refused to another") {
  Bookkeeping w(8, 0);
  const PoolId pool = w.pool(4);
  std::vector<Evicted> evicted;
  std::vector<ItemRequest> store = w.items({"a"});
  store[0].pool = pool;
  store[0].block = 3;
  const auto job = w.directory.prepare_store({w.ns, 0, kNormalPriority, kAllTiers}, store, evicted);
  REQUIRE(job);
  CHECK(w.directory.unregister_pool(pool).error().reason == Reason::kLeased);
  w.stored({"b"});
  std::vector<ItemRequest> load = w.items({"b"});
  load[0].pool = pool;
  load[0].block = 3;
  CHECK(w.directory.prepare_load({w.ns, 0, false, 0}, load).error().reason == Reason::kLeased);
  load[0].block = 4;
  CHECK(w.directory.prepare_load({w.ns, 0, false, 0}, load).error().reason == Reason::kOutOfRange);
  REQUIRE(w.directory.complete(*job, std::vector<ItemOutcome>(1)));
  load[0].block = 3;
  CHECK(w.directory.prepare_load({w.ns, 0, false, 0}, load));
}

TEST_CASE("a claim bounds the blocks that are loaded under it, and stays while they are") {
  Bookkeeping w(8, 0);
  const PoolId pool = w.pool(6);
  w.stored({"a", "b", "c"});
  const auto claim = w.directory.open_claim(pool, 0, 2);
  REQUIRE(claim);
  const auto load = [&](const std::vector<std::string>& keys, std::uint32_t first) {
    std::vector<ItemRequest> items = w.items(keys);
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i].pool = pool;
      items[i].block = first + static_cast<std::uint32_t>(i);
    }
    return w.directory.prepare_load({w.ns, 0, false, *claim}, items);
  };
  CHECK(load({"a", "b", "c"}, 0).error().reason == Reason::kOverBudget);
  const auto one = load({"a"}, 0);
  REQUIRE(one);
  CHECK(load({"b", "c"}, 1).error().reason == Reason::kOverBudget);  // one of the two is taken
  CHECK(w.directory.close_claim(*claim).error().reason == Reason::kLeased);
  REQUIRE(w.directory.complete(*one, std::vector<ItemOutcome>(1)));
  CHECK(load({"b", "c"}, 1));
}

TEST_CASE("a claim that was rolled back holds its whole need when it is granted again") {
  Bookkeeping w(8, 0);
  const PoolId pool = w.pool(7);
  w.stored({"a", "b", "c", "d"});
  const auto large = w.directory.open_claim(pool, 4, 0);
  const auto small = w.directory.open_claim(pool, 3, 0);
  REQUIRE(large);
  REQUIRE(small);
  REQUIRE(w.directory.extend_claim(*large, 1));
  REQUIRE(w.directory.extend_claim(*small, 1));
  CHECK(*w.directory.claim_state(*small) == ClaimState::kRolledBack);
  CHECK(*w.directory.claim_state(*large) == ClaimState::kGranted);
  REQUIRE(w.directory.close_claim(*large));
  CHECK(*w.directory.claim_state(*small) == ClaimState::kGranted);
  std::vector<ItemRequest> items = w.items({"a", "b", "c", "d"});
  for (std::uint32_t i = 0; i < 4; ++i) {
    items[i].pool = pool;
    items[i].block = i;
  }
  CHECK(w.directory.prepare_load({w.ns, 0, false, *small}, items));
}

TEST_CASE("a key that is being stored cannot be leased yet") {
  Bookkeeping w(4, 0);
  std::vector<Evicted> evicted;
  const auto job = w.store({"a"}, evicted);
  CHECK(w.directory.lease(w.ns, keys_of({"a"})).error().code == Code::kNotFound);
  REQUIRE(w.directory.complete(*job, std::vector<ItemOutcome>(1)));
  CHECK(w.directory.lease(w.ns, keys_of({"a"})));
}

TEST_CASE("keys known and writes under way are bounded") {
  CatalogOptions o;
  o.most_keys = 3;
  o.write_queue = 2;
  Bookkeeping w(3, 8, o);
  w.stored({"a", "b", "c"});
  std::vector<Evicted> evicted;
  CHECK(w.store({"d"}, evicted).error().reason == Reason::kOverBudget);
  Catalog& c = w.directory.catalog();
  const auto first = c.next_write();
  const auto second = c.next_write();
  REQUIRE(first);
  REQUIRE(second);
  CHECK_FALSE(c.next_write());
  c.finish_write(*first, true);
  CHECK(c.next_write());
}

TEST_CASE("a job whose bytes are moving is not cancelled") {
  DirectoryOptions o;
  o.catalog.slots = {4, 0};
  o.catalog.block_bytes = 4096;
  o.moves_bytes = true;
  Directory d(o);
  NamespaceDesc desc;
  desc.model = "toy";
  PoolDesc memory;
  memory.layout.opaque_bytes = 4096;
  desc.digest = layout_digest(memory.layout);
  desc.block_bytes = 4096;
  std::vector<std::byte> bytes(4096);
  memory.base = bytes.data();
  memory.bytes = bytes.size();
  memory.blocks = 1;
  const NamespaceId ns = *d.open_namespace(desc);
  const std::vector<ItemRequest> item = {{"a", *d.register_pool(memory), 0, false}};
  for (const bool moving : {true, false}) {
    std::vector<Evicted> evicted;
    const auto job = d.prepare_store({ns, 0, kNormalPriority, kAllTiers}, item, evicted);
    REQUIRE(job);
    REQUIRE(d.submit(*job));
    JobId running = 0;
    if (!moving) {
      CHECK(d.cancel(*job));  // only queued
      continue;
    }
    REQUIRE(d.pop_submitted(running));
    CHECK(d.cancel(*job).error().reason == Reason::kPending);
    d.finish_item(*job, 0, {Code::kIo, Reason::kNone, 0, false});
  }
}

TEST_CASE("a tenant over its quota loses its own blocks, nobody else's") {
  Bookkeeping w(10, 0);
  w.stored({"other1", "other2"});
  NamespaceDesc desc = w.desc;
  desc.tenant = "small";
  const auto ns = w.directory.open_namespace(desc);
  REQUIRE(ns);
  REQUIRE(w.directory.set_quota("small", 2 * 4096));
  w.ns = *ns;
  w.stored({"s1", "s2"});
  CHECK(*w.directory.tenant_usage("small") == 2 * 4096);
  std::vector<Evicted> evicted;
  const auto job = w.store({"s3"}, evicted);
  REQUIRE(job);
  REQUIRE(evicted.size() == 1);
  CHECK(evicted[0].key == "s1");
  CHECK(evicted[0].reason == Reason::kQuota);
  CHECK(w.store({"s4", "s5", "s6"}, evicted).error().reason == Reason::kQuota);
  CHECK(w.look("s2") == ItemState::kHit);
  CHECK(w.directory.stats().refused_quota == 1);
  CHECK(*w.directory.tenant_usage("") == 2 * 4096);
}

TEST_CASE("events are bounded, in order, and the dropped ones are counted") {
  CatalogOptions o;
  o.events = 3;
  Bookkeeping w(8, 0, o);
  w.stored({"a", "b", "c", "d"});
  Event e;
  REQUIRE(w.directory.pop_event(e));
  CHECK(e.key == "b");
  CHECK(e.kind == Event::Kind::kStored);
  CHECK(e.bytes == 4096);
  CHECK(w.directory.stats().events_dropped == 1);
}

TEST_CASE("a namespace is its description, and different tenants or ranks do not meet") {
  Bookkeeping w(8, 0);
  w.stored({"a"});
  CHECK(*w.directory.open_namespace(w.desc) == w.ns);
  NamespaceDesc other = w.desc;
  other.rank = 1;
  const auto ns = w.directory.open_namespace(other);
  REQUIRE(ns);
  LookUp out;
  const auto keys = keys_of({"a"});
  REQUIRE(w.directory.lookup(*ns, keys, {&out, 1}));
  CHECK(out.state == ItemState::kMiss);
  CHECK(out.reason == Reason::kNone);
  other.block_bytes = 4097;
  CHECK(w.directory.open_namespace(other).error().reason == Reason::kOutOfRange);
}
