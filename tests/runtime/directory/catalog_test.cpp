// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/catalog.hpp"

#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

using namespace lehr;
using namespace lehr::directory;

namespace {

CatalogOptions sized(std::uint32_t host, std::uint32_t nvme) {
  CatalogOptions o;
  o.slots = {host, nvme};
  o.block_bytes = 4096;
  return o;
}

ObjectId put(Catalog& c, const std::string& key, std::uint8_t priority = kNormalPriority,
             TenantId tenant = 0, Residency allowed = kAllTiers) {
  std::vector<Evicted> evicted;
  REQUIRE(c.check_room(kHostTier, 1, {}));
  const ObjectId id = c.create({0, tenant, key, 4096, priority, allowed}, kHostTier, evicted);
  c.publish(id, kHostTier, 1);
  return id;
}

void write_all(Catalog& c) {
  while (const auto w = c.next_write()) c.finish_write(*w, true);
}

}  // namespace

TEST_CASE("the least recently used of the lowest priority leaves first") {
  Catalog c(sized(3, 0));
  put(c, "old", 2);
  put(c, "mid");
  put(c, "new");
  c.touch(c.find(0, "mid"));
  put(c, "a");  // "new" is now the oldest of normal priority
  CHECK(c.find(0, "new") == kNone);
  put(c, "b");
  CHECK(c.find(0, "mid") == kNone);
  CHECK(c.find(0, "old") != kNone);
  CHECK(c.validate());
}

TEST_CASE("a block is written down once, and only then may its host copy leave") {
  Catalog c(sized(2, 8));
  put(c, "a");
  put(c, "b");
  CHECK(c.evictable(kHostTier) == 0);
  const Status busy = c.check_room(kHostTier, 1, {});
  REQUIRE_FALSE(busy);
  CHECK(busy.error().reason == Reason::kLowerTierBusy);
  const auto w = c.next_write();
  REQUIRE(w);
  CHECK(w->object == c.find(0, "a"));
  CHECK(c.check_room(kHostTier, 1, {}).error().reason ==
        Reason::kLowerTierBusy);  // not written yet
  c.finish_write(*w, true);
  CHECK(c.check_room(kHostTier, 1, {}));
  put(c, "c");
  CHECK(c.at(c.find(0, "a")).valid == tier_bit(kNvmeTier));
  CHECK(c.validate());
}

TEST_CASE("a copy that left nvme is not written again") {
  Catalog c(sized(4, 2));
  for (const char* key : {"a", "b", "c", "d"}) put(c, key);
  write_all(c);
  CHECK(c.stats.written_back == 4);
  CHECK_FALSE(c.next_write());
  CHECK(c.validate());
}

TEST_CASE("writes that keep failing end, and the block may then be lost with a reason") {
  Catalog c(sized(1, 4));
  put(c, "a");
  int attempts = 0;
  while (const auto w = c.next_write()) {
    c.finish_write(*w, false);
    ++attempts;
  }
  CHECK(attempts == 3);
  put(c, "b");
  CHECK(c.stats.dropped_lower_tier_busy == 1);
  CHECK(c.validate());
}

TEST_CASE("a key that may live on nvme only passes through host") {
  Catalog c(sized(2, 2));
  const ObjectId id = put(c, "a", kNormalPriority, 0, tier_bit(kNvmeTier));
  write_all(c);
  CHECK(c.at(id).valid == tier_bit(kNvmeTier));
  CHECK(c.used(kHostTier) == 0);
  const ObjectId stays = put(c, "b", kNormalPriority, 0, tier_bit(kHostTier));
  CHECK_FALSE(c.next_write());
  CHECK(c.at(stays).valid == tier_bit(kHostTier));
  CHECK(c.validate());
}

TEST_CASE("a condemned copy is gone for look-ups at once, its slot with the last pin") {
  Catalog c(sized(2, 0));
  const ObjectId id = put(c, "a");
  c.pin(id);
  c.pin(id);
  c.condemn(id, kHostTier, Reason::kChecksum);
  CHECK(c.at(id).valid == 0);
  CHECK(c.used(kHostTier) == 1);
  c.unpin(id);
  CHECK(c.used(kHostTier) == 1);
  c.unpin(id);
  CHECK(c.used(kHostTier) == 0);
  CHECK(c.find(0, "a") == kNone);
  CHECK(c.validate());
}

TEST_CASE("watermarks: eviction starts above the high one and ends at the low one") {
  CatalogOptions o = sized(100, 0);
  o.high_watermark = 0.9;
  o.low_watermark = 0.7;
  Catalog c(o);
  for (int i = 0; i < 90; ++i) put(c, std::to_string(i));
  CHECK(c.maintain() == 0);
  put(c, "one more");
  CHECK(c.maintain() == 21);
  CHECK(c.used(kHostTier) == 70);
}

namespace {

/// A catalog and what has been begun on it, by chance.
class Lives {
 public:
  Lives(std::uint64_t seed, const CatalogOptions& options)
      : c(options), rng_(seed), lower_(options.slots[1] > 0) {}

  void live() {
    const std::string key = std::to_string(rng_.below(60));
    const ObjectId known = c.find(0, key);
    switch (rng_.below(8)) {
      case 0:
      case 1:
        return known == kNone ? create(key) : void();
      case 2:
        return end_store();
      case 3:
        return pin(known);
      case 4:
        return unpin();
      case 5:
        return begin_write();
      case 6:
        return end_write();
      default:
        return known == kNone ? void() : remove_or_touch(known);
    }
  }

  Catalog c;

 private:
  void create(const std::string& key) {
    const std::uint64_t before = c.digest();
    if (!c.check_room(kHostTier, 1, {})) {
      REQUIRE(c.digest() == before);
      return;
    }
    const auto allowed = static_cast<Residency>(1 + rng_.below(lower_ ? 3 : 1));
    const ObjectId id =
        c.create({0, rng_.below(3), key, 4096, static_cast<std::uint8_t>(rng_.below(3)), allowed},
                 kHostTier, evicted_);
    pending_.emplace_back(id, kHostTier);
  }
  void end_store() {
    if (pending_.empty()) return;
    const auto [id, tier] = pending_.back();
    pending_.pop_back();
    if (rng_.below(4) == 0) {
      c.abandon(id, tier);
    } else {
      c.publish(id, tier, 1);
    }
  }
  void pin(ObjectId known) {
    if (known == kNone || c.at(known).valid == 0) return;
    c.pin(known);
    pinned_.push_back(known);
  }
  void unpin() {
    if (pinned_.empty()) return;
    const std::size_t at = rng_.below(static_cast<std::uint32_t>(pinned_.size()));
    if (rng_.below(4) == 0)
      c.condemn(pinned_[at], static_cast<TierId>(rng_.below(2)), Reason::kChecksum);
    c.unpin(pinned_[at]);
    pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void begin_write() {
    if (const auto w = c.next_write()) writes_.push_back(*w);
  }
  void end_write() {
    if (writes_.empty()) return;
    c.finish_write(writes_.back(), rng_.below(5) != 0);
    writes_.pop_back();
  }
  void remove_or_touch(ObjectId known) {
    if (rng_.below(2) == 0) {
      (void)c.remove(known);
    } else {
      c.touch(known);
    }
  }

  Rng rng_;
  bool lower_;
  std::vector<ObjectId> pinned_;
  std::vector<WriteDown> writes_;
  std::vector<std::pair<ObjectId, TierId>> pending_;
  std::vector<Evicted> evicted_;
};

}  // namespace

TEST_CASE("random lives of blocks: nothing is lost, capacity is never passed") {
  const std::uint64_t seed = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  INFO("seed " << seed);
  Rng rng(seed);
  CatalogOptions o = sized(1 + rng.below(20), rng.below(40));
  o.drop_when_busy = rng.below(2) == 0;
  o.most_keys = 50;
  Lives lives(rng.next(), o);
  for (int step = 0; step < 4000; ++step) {
    lives.live();
    const Status ok = lives.c.validate();
    if (!ok) FAIL(ok.error().what << " at step " << step);
    REQUIRE(lives.c.keys() <= o.most_keys);
  }
}
