// SPDX-License-Identifier: Apache-2.0
// Failures that were reported against tiering systems in production, as small inputs; each with a
// control that shows the failure when the guard is off.
#include <filesystem>
#include <list>
#include <string>
#include <unordered_map>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/directory/service.hpp"
#include "tests/runtime/directory/placement_world.hpp"

using namespace lehr;
using namespace lehr::directory;
using placement_world::Bookkeeping;
using placement_world::keys_of;
using placement_world::numbered;
using placement_world::RealBytes;

namespace {

std::string key_of(int chain, int page) {
  return numbered(static_cast<std::uint64_t>(chain) * 1000 + static_cast<std::uint64_t>(page));
}

// One party that loads what it can get and finishes when it has its whole need.
struct Party {
  std::uint32_t held, need;
  ClaimId claim = 0;
  bool done = false;
};

// Steps until all are done or two steps in a row made no progress.
bool all_finish(Directory& d, PoolId pool, std::vector<Party>& parties) {
  for (Party& p : parties) {
    const auto claim = d.open_claim(pool, p.held, p.held > 0 ? 0 : p.need);
    REQUIRE(claim);
    p.claim = *claim;
  }
  for (const Party& p : parties) {
    if (p.held > 0) REQUIRE(d.extend_claim(p.claim, p.need));
  }
  for (int idle = 0; idle < 2;) {
    bool progress = false;
    for (Party& p : parties) {
      if (p.done) continue;
      const auto state = d.claim_state(p.claim);
      if (state && *state == ClaimState::kRolledBack) progress = true;
      if (state && *state == ClaimState::kGranted) {
        p.done = true;
        progress = true;
        REQUIRE(d.close_claim(p.claim));
      }
    }
    const bool all =
        std::all_of(parties.begin(), parties.end(), [](const Party& p) { return p.done; });
    if (all) return true;
    idle = progress ? 0 : idle + 1;
  }
  return false;
}

}  // namespace

TEST_CASE("case 3: loads do not strand each other") {
  // (a) A holds 4 of 5, B wants 3 of its 4: not granted until A is done.
  {
    Bookkeeping w(4, 0);
    const PoolId pool = w.pool(7);
    const auto a = w.directory.open_claim(pool, 0, 5);
    const auto b = w.directory.open_claim(pool, 0, 4);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(*w.directory.claim_state(*a) == ClaimState::kGranted);
    CHECK(*w.directory.claim_state(*b) == ClaimState::kWaiting);
    CHECK(w.directory.prepare_load({w.ns, 0, true, *b}, w.items({"x"})).error().reason ==
          Reason::kPending);
    REQUIRE(w.directory.close_claim(*a));
    CHECK(*w.directory.claim_state(*b) == ClaimState::kGranted);
  }
  struct Input {
    std::uint32_t blocks;
    std::vector<Party> parties;
  };
  const std::vector<Input> inputs = {
      {7, {{4, 1}, {3, 1}}},                 // both loaded already: one is rolled back whole
      {270, {{250, 5}, {0, 100}, {0, 10}}},  // (b)
      {2048, {{512, 1600 - 512}, {736, 1200 - 736}}},  // (c) 25,596 and 19,196 tokens, 16 a block
  };
  for (const Input& input : inputs) {
    INFO(input.blocks << " blocks");
    Bookkeeping w(4, 0);
    std::vector<Party> parties = input.parties;
    CHECK(all_finish(w.directory, w.pool(input.blocks), parties));
  }
  // The control: granting what happens to be free strands both parties of the first input.
  Bookkeeping w(4, 0, {}, false);
  std::vector<Party> parties = {{4, 1}, {3, 1}};
  CHECK_FALSE(all_finish(w.directory, w.pool(7), parties));
}

TEST_CASE("case 4: a pass evicts a share of what is evictable, not of what is known") {
  CatalogOptions o;
  o.events = 1;
  o.write_queue = 1U << 20;
  const auto fill = [](Bookkeeping& w) {
    for (int i = 0; i < 85'623; ++i) {
      w.stored({std::to_string(i)});
      w.write_all();
    }
  };
  Bookkeeping w(3777, 81'846 + 3777, o);
  fill(w);
  Catalog& c = w.directory.catalog();
  REQUIRE(c.keys() == 85'623);
  REQUIRE(c.used(kHostTier) == 3777);
  const EvictReport report = c.evict_share(kHostTier, 0.05);
  CHECK(report.evicted == 189);  // ceil(0.05 * 3777)
  CHECK(report.examined == 189);
  CHECK(c.used(kHostTier) == 3777 - 189);
  CHECK(c.keys() == 85'623);
  // The control: as many as the same share of all known keys empties host.
  Bookkeeping wrong(3777, 81'846 + 3777, o);
  fill(wrong);
  Catalog& emptied = wrong.directory.catalog();
  emptied.evict_share(kHostTier, std::min(1.0, 0.05 * emptied.keys() / emptied.used(kHostTier)));
  CHECK(emptied.used(kHostTier) == 0);
}

namespace {

struct ChainOutcome {
  int stored = 0, refused = 0, durable = 0;
  std::uint64_t dropped = 0;
};

bool write_one(Bookkeeping& w) {
  const auto write = w.directory.catalog().next_write();
  if (write) w.directory.catalog().finish_write(*write, true);
  return write.has_value();
}

/// Stores a key, writing down one block for each time that it is refused for a busy tier below.
int store_patiently(Bookkeeping& w, const std::string& key) {
  std::vector<Evicted> evicted;
  for (int refused = 0;; ++refused) {
    const auto job = w.store({key}, evicted);
    if (job) {
      REQUIRE(w.directory.complete(*job, std::vector<ItemOutcome>(1)));
      REQUIRE(w.directory.release(*job));
      return refused;
    }
    REQUIRE(job.error().reason == Reason::kLowerTierBusy);  // slowed down, with a reason
    REQUIRE(write_one(w));
  }
}

/// Host 423, disk 2,000; five chains of 250 pages; one write-down for every `pace` stores.
ChainOutcome store_chains(int pace, bool drop) {
  CatalogOptions o;
  o.drop_when_busy = drop;
  Bookkeeping w(423, 2000, o);
  ChainOutcome out;
  for (; out.stored < 5 * 250; ++out.stored) {
    out.refused += store_patiently(w, key_of(out.stored / 250, out.stored % 250));
    if ((out.stored + 1) % pace == 0) write_one(w);
  }
  std::vector<std::string> chain(250);
  for (int page = 0; page < 250; ++page) chain[static_cast<std::size_t>(page)] = key_of(0, page);
  std::vector<LookUp> answers(250);
  out.durable = static_cast<int>(*w.directory.lookup(w.ns, keys_of(chain), answers));
  out.dropped = w.directory.stats().dropped_lower_tier_busy;
  CHECK(w.directory.catalog().validate());
  return out;
}

}  // namespace

TEST_CASE("case 5: a chain is never silently shorter than what was written") {
  for (const int pace : {1, 4}) {
    const ChainOutcome kept = store_chains(pace, false);
    CHECK(kept.stored == 1250);
    CHECK(kept.durable == 250);
    CHECK(kept.dropped == 0);
    CHECK((kept.refused > 0) == (pace == 4));
  }
  // The control: without the guard pages are lost, but each is counted with its reason.
  const ChainOutcome lossy = store_chains(4, true);
  CHECK(lossy.durable < 250);
  CHECK(lossy.dropped > 0);
}

TEST_CASE("case 6: nothing evictable is an answer, at once") {
  RealBytes w(8, 4, 0);
  const auto job = w.prepare_store({"a", "b", "c", "d"}, 0);
  w.run(*job);
  const auto lease = w.service->with([&](Directory& d) {
    return d.lease(w.ns, keys_of({"a", "b", "c", "d"}));
  });
  REQUIRE(lease);
  const auto refusal = w.prepare_store({"e"}, 4);
  REQUIRE_FALSE(refusal);
  CHECK(refusal.error().code == Code::kRefused);
  CHECK(refusal.error().reason == Reason::kNoEvictable);
  CHECK(w.stats().refused_no_evictable == 1);
  CHECK(w.service->with([&](Directory& d) { return d.release_lease(*lease); }));
  CHECK(w.prepare_store({"e"}, 4));  // the control
}

TEST_CASE("case 8: a copy whose bytes vanished or were replaced is one failed load, then a miss") {
  const auto run = [](const char* faults) {
    RealBytes w(16, 2, 8, faults);
    for (std::uint32_t b = 0; b < 4; ++b) {
      w.fill(b, b);
      w.run(*w.prepare_store({numbered(b)}, b));
      REQUIRE(w.service->drain(20'000'000'000));
    }
    REQUIRE(w.look("k0").tier == kNvmeTier);
    w.fill(8, 77);
    const auto items = w.run(*w.prepare_load({"k0"}, 8));
    return std::tuple(items[0], w.look("k0").state, w.stats(), w.holds(8, 0));
  };
  {
    const auto [item, after, stats, right] = run("read#1=truncate");  // the file ended early
    CHECK(item.state == ItemState::kFailed);
    CHECK(after == ItemState::kMiss);
    CHECK(stats.load_failures == 1);
    CHECK_FALSE(right);
  }
  {
    const auto [item, after, stats, right] = run("read#1=bitflip");  // other bytes of the same size
    CHECK(item.state == ItemState::kFailed);
    CHECK(item.reason == Reason::kChecksum);
    CHECK(after == ItemState::kMiss);
    CHECK(stats.checksum_failures == 1);
  }
  {
    // The control: without the checksum the replaced bytes pass as the page's.
    const auto [item, after, stats, right] = run("read#1=bitflip; off=checksum");
    CHECK(item.state == ItemState::kDone);
    CHECK_FALSE(right);
  }
}

TEST_CASE("case 9: exact fit, and one off") {
  const Bytes block = GENERATE(4096, 4100, 12'288, 20'000);
  INFO("blocks of " << block);
  RealBytes w(9, 4, 0, "", block);
  std::vector<std::string> four = {"a", "b", "c", "d"};
  for (std::uint32_t b = 0; b < 4; ++b) w.fill(b, b);
  const auto exact = w.prepare_store(four, 0);
  REQUIRE(exact);
  for (const JobItem& item : w.run(*exact)) CHECK(item.state == ItemState::kDone);
  const auto over = w.prepare_store({"e", "f", "g", "h", "i"}, 0);
  REQUIRE_FALSE(over);
  CHECK(over.error().reason == Reason::kOverBudget);
  const auto back = w.prepare_load(four, 5);
  REQUIRE(back);
  w.run(*back);
  for (std::uint32_t b = 0; b < 4; ++b) CHECK(w.holds(5 + b, b));
}

TEST_CASE("case 10: a tier that only repeats the pools is told to help nobody") {
  // An engine with an LRU pool of 668 blocks that stores each block it fills, sweeping 1,250 pages
  // twice.
  const auto run = [](std::uint32_t host) {
    Bookkeeping w(host, 0);
    w.pool(668);
    std::list<std::string> order;
    std::unordered_map<std::string, std::list<std::string>::iterator> held;
    for (int round = 0; round < 2; ++round) {
      for (int page = 0; page < 1250; ++page) {
        const std::string key = std::to_string(page);
        if (held.count(key) != 0) continue;
        if (w.look(key) != ItemState::kHit) w.stored({key});
        order.push_back(key);
        held[key] = std::prev(order.end());
        if (order.size() > 668) {
          held.erase(order.front());
          order.pop_front();
        }
      }
    }
    return std::pair(w.directory.stats(), w.directory.advice());
  };
  const auto [small, warned] = run(423);
  CHECK(small.lookup_hits == 0);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], Catch::Matchers::Contains("hold 423 blocks") &&
                            Catch::Matchers::Contains("668") &&
                            Catch::Matchers::Contains("0 of 2500 look-ups"));
  const auto [large, fine] = run(1300);  // the control
  CHECK(large.lookup_hits == 1250);
  CHECK(fine.empty());
}

TEST_CASE("case 12: the same bytes under another layout are a miss that says why") {
  Bookkeeping w(8, 0);
  w.stored({"a"});
  NamespaceDesc fused = w.desc;
  Layout other = placement_world::elements(1, 1, 16, 64);
  other.fused = true;
  other.token_stride = 256;
  other.block_stride = 4096;
  REQUIRE(contents_bytes(other) == contents_bytes(w.layout));
  fused.digest = layout_digest(other);
  const auto ns = w.directory.open_namespace(fused);
  REQUIRE(ns);
  LookUp out;
  const auto keys = keys_of({"a"});
  REQUIRE(w.directory.lookup(*ns, keys, {&out, 1}));
  CHECK(out.state == ItemState::kMiss);
  CHECK(out.reason == Reason::kLayoutMismatch);
  CHECK(w.directory.stats().layout_mismatches == 1);
  CHECK(w.directory.prepare_load({*ns, 0, false, 0}, w.items({"a"})).error().code ==
        Code::kNotFound);
  // A pool of the first layout cannot be used in the second's namespace either.
  std::vector<ItemRequest> item = w.items({"a"});
  item[0].pool = w.pool(2);
  std::vector<Evicted> evicted;
  CHECK(w.directory.prepare_store({*ns, 0, kNormalPriority, kAllTiers}, item, evicted)
            .error()
            .reason == Reason::kLayoutMismatch);
  // Nor can the first namespace's block be loaded into a pool of the second layout.
  PoolDesc fused_pool;
  fused_pool.layout = other;
  fused_pool.blocks = 2;
  fused_pool.bytes = 8192;
  item[0].pool = *w.directory.register_pool(fused_pool);
  CHECK(w.directory.prepare_load({w.ns, 0, false, 0}, item).error().reason ==
        Reason::kLayoutMismatch);
  item[0].pool = w.pool(2);
  CHECK(w.directory.prepare_load({w.ns, 0, false, 0}, item));
  // The control: a namespace that leaves the layout out is the same one, and hits.
  REQUIRE(w.directory.lookup(*w.directory.open_namespace(w.desc), keys_of({"a"}), {&out, 1}));
  CHECK(out.state == ItemState::kHit);
}

TEST_CASE("case 13: a disk tier has an end, and leaves nothing behind") {
  const auto run = [](std::uint32_t slots, std::uint32_t& most, std::uint32_t& first_left) {
    RealBytes w(2, 8, slots, "", 64 * 1024);
    most = 0;
    int wrong = 0;
    for (std::uint32_t i = 0; i < 300; ++i) {
      w.fill(0, i);
      const auto job = w.prepare_store({std::to_string(i)}, 0);
      REQUIRE(job);
      w.run(*job);
      REQUIRE(w.service->drain(20'000'000'000));
      most = std::max(most, static_cast<std::uint32_t>(w.stats().nvme_used));
      if (i % 7 != 0) continue;  // a reader of old chunks: right bytes or a clean miss
      const std::uint32_t old = i / 2;
      if (w.look(std::to_string(old)).state != ItemState::kHit) continue;
      const auto load = w.prepare_load({std::to_string(old)}, 1);
      REQUIRE(load);
      if (w.run(*load)[0].state != ItemState::kDone || !w.holds(1, old)) ++wrong;
    }
    first_left = 0;
    while (w.look(std::to_string(first_left)).state != ItemState::kHit) ++first_left;
    return wrong;
  };
  std::uint32_t most = 0;
  std::uint32_t first_left = 0;
  CHECK(run(64, most, first_left) == 0);
  CHECK(most == 64);
  CHECK(first_left > 100);  // the oldest left first; the reader's touches keep a few of the old
  CHECK(run(200, most, first_left) == 0);  // the control: a larger limit is used
  CHECK(most == 200);
}

TEST_CASE("case 13: no file is left when the process is killed") {
  namespace fs = std::filesystem;
  const fs::path dir = fs::absolute("case13_scratch");
  fs::create_directory(dir);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ServiceOptions o;
    o.directory.catalog.slots = {2, 16};
    o.directory.catalog.block_bytes = 65536;
    o.directory.moves_bytes = true;
    o.store.emplace();
    o.store->block_bytes = 65536;
    o.store->slots = {2, 16};
    o.store->nvme_directory = dir.string();
    const auto service = Service::create(o);
    if (!service) _exit(3);
    raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(fs::is_empty(dir));
  fs::remove_all(dir);
}

TEST_CASE("case 15: one bad block in a batch costs that block only") {
  const auto run = [](const char* faults) {
    RealBytes w(32, 2, 16, faults);
    std::vector<std::string> keys;
    for (std::uint32_t b = 0; b < 10; ++b) {
      w.fill(b, b);
      keys.push_back(numbered(b));
      w.run(*w.prepare_store({keys.back()}, b));
      REQUIRE(w.service->drain(20'000'000'000));
    }
    // Push the last two down, too, so that all ten come from nvme in order.
    for (const char* key : {"x", "y"}) {
      w.run(*w.prepare_store({key}, 10));
      REQUIRE(w.service->drain(20'000'000'000));
    }
    const auto items = w.run(*w.prepare_load(keys, 16));
    int good = 0;
    int failed = -1;
    for (int i = 0; i < 10; ++i) {
      if (items[static_cast<std::size_t>(i)].state == ItemState::kDone &&
          w.holds(16 + static_cast<std::uint32_t>(i), static_cast<std::uint64_t>(i)))
        ++good;
      if (items[static_cast<std::size_t>(i)].state == ItemState::kFailed) failed = i;
    }
    if (failed >= 0) {
      const std::string key = numbered(static_cast<std::uint64_t>(failed));
      CHECK(w.look(key).state == ItemState::kMiss);
      const std::uint64_t used = w.stats().nvme_used;
      w.run(*w.prepare_store({key},
                             static_cast<std::uint32_t>(failed)));  // recomputed: just that block
      CHECK(w.look(key).state == ItemState::kHit);
      REQUIRE(w.service->drain(20'000'000'000));
      CHECK(w.stats().nvme_used == used + 1);
    }
    w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
    return std::tuple(good, failed, w.stats().checksum_failures);
  };
  const auto [good, failed, counted] = run("read#4=bitflip");
  CHECK(good == 9);
  CHECK(failed >= 0);
  CHECK(counted == 1);
  const auto [blind, unseen, uncounted] = run("read#4=bitflip; off=checksum");  // the control
  CHECK(blind == 9);
  CHECK(unseen == -1);
  CHECK(uncounted == 0);
}
