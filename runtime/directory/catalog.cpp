// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/catalog.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "kernels/base/check.hpp"
#include "kernels/base/rng.hpp"

namespace lehr::directory {

namespace {

constexpr std::uint8_t kNoQueue = 0, kClean = 1, kDirty = 2;
// A block whose writes keep failing stays in its tier, but may be lost when room is needed.
constexpr std::uint8_t kMostFailedWrites = 3;
constexpr std::size_t kPrefix = sizeof(NamespaceId);

// A key as the index holds it: the namespace's number, then the key.
class IndexKey {
 public:
  IndexKey(NamespaceId ns, std::string_view key) : size_(kPrefix + key.size()) {
    std::memcpy(text_, &ns, kPrefix);
    std::memcpy(text_ + kPrefix, key.data(), key.size());
  }
  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[kPrefix + kMostKeyBytes];
  std::size_t size_;
};

}  // namespace

std::size_t Catalog::KeyHash::operator()(std::string_view text) const {
  return std::hash<std::string_view>()(text);
}

Catalog::Catalog(const CatalogOptions& options) : events(options.events), options_(options) {
  for (TierId t = 0; t < kTiers; ++t) {
    tiers_[t].free.resize(options_.slots[t]);
    for (std::uint32_t i = 0; i < options_.slots[t]; ++i) {
      tiers_[t].free[i] = options_.slots[t] - 1 - i;  // the lowest slot is handed out first
    }
  }
}

ObjectId Catalog::find(NamespaceId ns, std::string_view key) const {
  if (key.size() > kMostKeyBytes) return kNone;
  const auto found = index_.find(IndexKey(ns, key).view());
  return found == index_.end() ? kNone : found->second;
}

// --- queues -------------------------------------------------------------------------------------

Catalog::Queue& Catalog::queue_of(TierId tier, const Object& object) {
  Tier& t = tiers_[tier];
  if (object.queue[tier] == kDirty) return t.dirty_queue;
  const std::size_t index = std::size_t{object.tenant} * kPriorities + object.priority;
  if (t.clean_queues.size() <= index) t.clean_queues.resize(index + 1);
  return t.clean_queues[index];
}

void Catalog::enqueue(ObjectId id, TierId tier, std::uint8_t kind) {
  Object& o = objects_[id];
  o.queue[tier] = kind;
  Queue& q = queue_of(tier, o);
  o.previous[tier] = q.tail;
  o.next[tier] = kNone;
  (q.tail == kNone ? q.head : objects_[q.tail].next[tier]) = id;
  q.tail = id;
  ++(kind == kClean ? tiers_[tier].clean : tiers_[tier].dirty);
}

void Catalog::dequeue(ObjectId id, TierId tier) {
  Object& o = objects_[id];
  Queue& q = queue_of(tier, o);
  (o.previous[tier] == kNone ? q.head : objects_[o.previous[tier]].next[tier]) = o.next[tier];
  (o.next[tier] == kNone ? q.tail : objects_[o.next[tier]].previous[tier]) = o.previous[tier];
  --(o.queue[tier] == kClean ? tiers_[tier].clean : tiers_[tier].dirty);
  o.queue[tier] = kNoQueue;
}

bool Catalog::has_lower(const Object& o, TierId tier) const {
  for (TierId t = static_cast<TierId>(tier + 1); t < kTiers; ++t) {
    if (resident(o.allowed, t) && options_.slots[t] > 0) return true;
  }
  return false;
}

std::uint8_t Catalog::wanted_queue(const Object& o, TierId tier) const {
  if (!resident(o.valid, tier) || o.pins > 0) return kNoQueue;
  const bool below = (o.valid >> (tier + 1)) != 0;
  if (below || o.written || o.failed_writes >= kMostFailedWrites || !has_lower(o, tier)) {
    return kClean;
  }
  return kDirty;
}

void Catalog::requeue(ObjectId id) {
  for (TierId t = 0; t < kTiers; ++t) {
    const std::uint8_t wanted = wanted_queue(objects_[id], t);
    if (objects_[id].queue[t] == wanted) continue;
    if (objects_[id].queue[t] != kNoQueue) dequeue(id, t);
    if (wanted != kNoQueue) enqueue(id, t, wanted);
  }
}

// --- slots and copies ---------------------------------------------------------------------------

void Catalog::account(TenantId tenant, std::int64_t bytes) {
  if (tenant_bytes_.size() <= tenant) tenant_bytes_.resize(tenant + 1);
  tenant_bytes_[tenant] += static_cast<std::uint64_t>(bytes);
}

std::uint64_t Catalog::tenant_bytes(TenantId tenant) const {
  return tenant < tenant_bytes_.size() ? tenant_bytes_[tenant] : 0;
}

ObjectId Catalog::victim(TierId tier) const {
  const Tier& t = tiers_[tier];
  for (std::size_t priority = 0; priority < kPriorities; ++priority) {
    ObjectId best = kNone;
    for (std::size_t q = priority; q < t.clean_queues.size(); q += kPriorities) {
      const ObjectId head = t.clean_queues[q].head;
      if (head == kNone) continue;
      if (best == kNone || objects_[head].tick < objects_[best].tick) best = head;
    }
    if (best != kNone) return best;
  }
  return kNone;
}

void Catalog::give_slot(TierId tier, SlotId slot) {
  tiers_[tier].free.push_back(slot);
  --tiers_[tier].used;
}

void Catalog::drop_copy(ObjectId id, TierId tier, Reason reason, bool for_room) {
  Object& o = objects_[id];
  if (o.queue[tier] != kNoQueue) dequeue(id, tier);
  o.valid = static_cast<Residency>(o.valid & ~tier_bit(tier));
  give_slot(tier, o.slot[tier]);
  o.slot[tier] = kNoSlot;
  if (for_room) ++(tier == kHostTier ? stats.evicted_host : stats.evicted_nvme);
  events.push({Event::Kind::kRemoved, tier, reason, o.ns, std::string(o.key), o.bytes});
}

bool Catalog::evict_one(TierId tier, std::vector<Evicted>* evicted) {
  ObjectId id = victim(tier);
  Reason reason = Reason::kNone;
  if (id == kNone && options_.drop_when_busy) {
    id = tiers_[tier].dirty_queue.head;
    reason = Reason::kLowerTierBusy;
  }
  if (id == kNone) return false;
  // Counted as lost when a tier below should have held it but never did.
  const Object& o = objects_[id];
  const bool failed = o.failed_writes >= kMostFailedWrites && !o.written && has_lower(o, tier);
  if (failed) reason = Reason::kLowerTierBusy;
  if (reason == Reason::kLowerTierBusy) ++stats.dropped_lower_tier_busy;
  if (evicted != nullptr) evicted->push_back({o.ns, std::string(o.key), tier, reason});
  drop_copy(id, tier, reason, true);
  requeue(id);
  erase_if_empty(id);
  return true;
}

SlotId Catalog::take_slot(TierId tier, std::vector<Evicted>* evicted) {
  Tier& t = tiers_[tier];
  if (t.free.empty() && !evict_one(tier, evicted)) return kNoSlot;
  const SlotId slot = t.free.back();
  t.free.pop_back();
  ++t.used;
  return slot;
}

void Catalog::erase_if_empty(ObjectId id) {
  Object& o = objects_[id];
  if (o.valid != 0 || o.pending != 0 || o.doomed != 0 || o.pins > 0) return;
  const auto found = index_.find(IndexKey(o.ns, o.key).view());
  LEHR_CHECK(1, found != index_.end());
  index_.erase(found);
  account(o.tenant, -static_cast<std::int64_t>(options_.block_bytes));
  o = Object{};
  free_objects_.push_back(id);
}

// --- the life of an object ----------------------------------------------------------------------

Status Catalog::check_room(TierId tier, std::uint32_t count, std::span<const ObjectId> keep) const {
  const Tier& t = tiers_[tier];
  std::uint32_t kept_clean = 0;
  std::uint32_t kept_dirty = 0;
  for (const ObjectId id : keep) {
    kept_clean += objects_[id].queue[tier] == kClean ? 1 : 0;
    kept_dirty += objects_[id].queue[tier] == kDirty ? 1 : 0;
  }
  if (std::uint64_t{keys()} + count > options_.most_keys) {
    return refused(Reason::kOverBudget,
                   fmt::format("{} new keys beside {} known ones pass the limit of {}", count,
                               keys(), options_.most_keys));
  }
  const auto free = static_cast<std::uint32_t>(t.free.size());
  std::uint32_t room = free + t.clean - kept_clean;
  if (options_.drop_when_busy) room += t.dirty - kept_dirty;
  if (room >= count) return {};
  if (count > options_.slots[tier]) {
    return refused(Reason::kOverBudget, fmt::format("{} new blocks for a tier of {} slots", count,
                                                    options_.slots[tier]));
  }
  // Copies being written down right now are pinned, and come back as evictable, too.
  if (room + (t.dirty - kept_dirty) + writes_ >= count) {
    return refused(
        Reason::kLowerTierBusy,
        fmt::format("{} slots are needed, {} are free, {} evictable, {} wait to be written down",
                    count, free, t.clean - kept_clean, t.dirty - kept_dirty + writes_));
  }
  return refused(
      Reason::kNoEvictable,
      fmt::format("{} slots are needed, {} are free, {} evictable; {} of {} are held", count, free,
                  t.clean - kept_clean, t.used - t.clean, options_.slots[tier]));
}

ObjectId Catalog::create(const NewObject& what, TierId tier, std::vector<Evicted>& evicted) {
  const SlotId slot = take_slot(tier, &evicted);
  LEHR_CHECK(1, slot != kNoSlot);
  ObjectId id = 0;
  if (free_objects_.empty()) {
    id = static_cast<ObjectId>(objects_.size());
    objects_.emplace_back();
  } else {
    id = free_objects_.back();
    free_objects_.pop_back();
  }
  const auto [node, fresh] = index_.emplace(IndexKey(what.ns, what.key).view(), id);
  LEHR_CHECK(1, fresh);
  Object& o = objects_[id];
  o = Object{};
  o.key = std::string_view(node->first).substr(kPrefix);
  o.ns = what.ns;
  o.tenant = what.tenant;
  o.bytes = what.bytes;
  o.priority = what.priority;
  o.allowed = what.allowed;
  o.live = true;
  o.tick = ++tick_;
  o.slot.fill(kNoSlot);
  o.slot[tier] = slot;
  o.pending = tier_bit(tier);
  account(o.tenant, static_cast<std::int64_t>(options_.block_bytes));
  return id;
}

void Catalog::publish(ObjectId id, TierId tier, std::uint64_t checksum) {
  Object& o = objects_[id];
  LEHR_CHECK(1, resident(o.pending, tier));
  o.pending = static_cast<Residency>(o.pending & ~tier_bit(tier));
  o.valid = static_cast<Residency>(o.valid | tier_bit(tier));
  o.checksum = checksum;
  o.tick = ++tick_;
  events.push({Event::Kind::kStored, tier, Reason::kNone, o.ns, std::string(o.key), o.bytes});
  requeue(id);
}

void Catalog::abandon(ObjectId id, TierId tier) {
  Object& o = objects_[id];
  LEHR_CHECK(1, resident(o.pending, tier));
  o.pending = static_cast<Residency>(o.pending & ~tier_bit(tier));
  give_slot(tier, o.slot[tier]);
  o.slot[tier] = kNoSlot;
  erase_if_empty(id);
}

SlotId Catalog::reserve_copy(ObjectId id, TierId tier) {
  Object& o = objects_[id];
  const Residency taken = static_cast<Residency>(o.valid | o.pending | o.doomed);
  if (resident(taken, tier) || !resident(o.allowed, tier) || options_.slots[tier] == 0)
    return kNoSlot;
  if (tiers_[tier].free.empty() && tiers_[tier].clean == 0)
    return kNoSlot;  // a cache fill forces nothing out
  const SlotId slot = take_slot(tier, nullptr);
  if (slot == kNoSlot) return kNoSlot;
  objects_[id].slot[tier] = slot;
  objects_[id].pending = static_cast<Residency>(objects_[id].pending | tier_bit(tier));
  return slot;
}

void Catalog::pin(ObjectId id) {
  Object& o = objects_[id];
  if (o.pins++ == 0) {
    ++pinned_;
    requeue(id);
  }
}

void Catalog::unpin(ObjectId id) {
  Object& o = objects_[id];
  LEHR_CHECK(1, o.pins > 0);
  if (--o.pins > 0) return;
  --pinned_;
  for (TierId t = 0; t < kTiers; ++t) {
    if (!resident(o.doomed, t)) continue;
    o.doomed = static_cast<Residency>(o.doomed & ~tier_bit(t));
    give_slot(t, o.slot[t]);
    o.slot[t] = kNoSlot;
  }
  o.tick = ++tick_;
  requeue(id);
  erase_if_empty(id);
}

void Catalog::touch(ObjectId id) {
  Object& o = objects_[id];
  o.tick = ++tick_;
  for (TierId t = 0; t < kTiers; ++t) {
    const std::uint8_t kind = o.queue[t];
    if (kind == kNoQueue) continue;
    dequeue(id, t);
    enqueue(id, t, kind);
  }
}

void Catalog::condemn(ObjectId id, TierId tier, Reason reason) {
  Object& o = objects_[id];
  if (!resident(o.valid, tier)) return;
  LEHR_CHECK(1, o.pins > 0);
  o.valid = static_cast<Residency>(o.valid & ~tier_bit(tier));
  o.doomed = static_cast<Residency>(o.doomed | tier_bit(tier));
  events.push({Event::Kind::kRemoved, tier, reason, o.ns, std::string(o.key), o.bytes});
}

Status Catalog::remove(ObjectId id) {
  const Object& o = objects_[id];
  if (o.pending != 0) return refused(Reason::kPending, "the key is being stored");
  if (o.pins > 0)
    return refused(Reason::kLeased, fmt::format("{} jobs or leases hold the key", o.pins));
  for (TierId t = 0; t < kTiers; ++t) {
    if (resident(objects_[id].valid, t)) drop_copy(id, t, Reason::kNone, false);
  }
  erase_if_empty(id);
  return {};
}

bool Catalog::evict_of_tenant(TenantId tenant, std::uint32_t count, std::span<const ObjectId> keep,
                              std::vector<Evicted>& evicted) {
  // Whole keys: every copy of one is evictable where its lowest is. Oldest first within each queue.
  std::vector<ObjectId> chosen;
  for (std::size_t priority = 0; priority < kPriorities; ++priority) {
    for (TierId t = kTiers; t-- > 0;) {
      const std::size_t q = std::size_t{tenant} * kPriorities + priority;
      if (q >= tiers_[t].clean_queues.size()) continue;
      for (ObjectId id = tiers_[t].clean_queues[q].head; id != kNone && chosen.size() < count;
           id = objects_[id].next[t]) {
        const bool below = (objects_[id].valid >> (t + 1)) != 0;
        const bool kept = std::find(keep.begin(), keep.end(), id) != keep.end();
        if (!below && !kept && objects_[id].pending == 0) chosen.push_back(id);
      }
    }
  }
  if (chosen.size() < count) return false;
  for (const ObjectId id : chosen) {
    for (TierId t = 0; t < kTiers; ++t) {
      if (!resident(objects_[id].valid, t)) continue;
      evicted.push_back({objects_[id].ns, std::string(objects_[id].key), t, Reason::kQuota});
      drop_copy(id, t, Reason::kQuota, true);
    }
    erase_if_empty(id);
  }
  return true;
}

// --- eviction and write-down --------------------------------------------------------------------

EvictReport Catalog::evict_share(TierId tier, double share) {
  EvictReport report;
  const double wanted = std::ceil(share * static_cast<double>(tiers_[tier].clean));
  while (static_cast<double>(report.evicted) < wanted) {
    ++report.examined;
    if (!evict_one(tier, nullptr)) break;
    ++report.evicted;
  }
  return report;
}

std::uint32_t Catalog::maintain() {
  const double slots = options_.slots[kHostTier];
  const Tier& host = tiers_[kHostTier];
  if (options_.high_watermark >= 1 ||
      static_cast<double>(host.used) <= options_.high_watermark * slots) {
    return 0;
  }
  std::uint32_t evicted = 0;
  while (static_cast<double>(host.used) > options_.low_watermark * slots && host.clean > 0 &&
         evict_one(kHostTier, nullptr)) {
    ++evicted;
  }
  return evicted;
}

std::uint32_t Catalog::waiting_write() const {
  std::uint32_t dirty = writes_;
  for (const Tier& t : tiers_) dirty += t.dirty;
  return dirty;
}

std::optional<WriteDown> Catalog::next_write() {
  if (writes_ >= options_.write_queue) return std::nullopt;
  for (TierId from = 0; from + 1U < kTiers; ++from) {
    const ObjectId id = tiers_[from].dirty_queue.head;
    if (id == kNone) continue;
    const auto to = static_cast<TierId>(from + 1);
    if (tiers_[to].free.empty() && tiers_[to].clean == 0) continue;
    // What the write displaces below is the least recent there, never the object itself.
    pin(id);
    const SlotId slot = take_slot(to, nullptr);
    Object& o = objects_[id];
    o.slot[to] = slot;
    o.pending = static_cast<Residency>(o.pending | tier_bit(to));
    ++writes_;
    return WriteDown{id, from, to, o.slot[from], slot};
  }
  return std::nullopt;
}

void Catalog::finish_write(const WriteDown& write, bool ok) {
  Object& o = objects_[write.object];
  --writes_;
  if (ok) {
    o.pending = static_cast<Residency>(o.pending & ~tier_bit(write.to));
    o.valid = static_cast<Residency>(o.valid | tier_bit(write.to));
    o.written = true;
    ++stats.written_back;
    events.push({Event::Kind::kStored, write.to, Reason::kNone, o.ns, std::string(o.key), o.bytes});
  } else {
    ++o.failed_writes;
    ++stats.io_failures;
    abandon(write.object, write.to);
  }
  const std::uint64_t tick = o.tick;
  unpin(write.object);
  if (!o.live) return;
  o.tick = tick;  // writing is no use of the block
  // Passing through only: the key may not stay in this tier.
  if (ok && o.pins == 0 && !resident(o.allowed, write.from) && resident(o.valid, write.from)) {
    drop_copy(write.object, write.from, Reason::kNone, false);
    requeue(write.object);
  }
}

// --- checks -------------------------------------------------------------------------------------

Status Catalog::validate() const {
  for (TierId t = 0; t < kTiers; ++t) LEHR_TRY(validate_tier(t));
  return {};
}

Status Catalog::validate_tier(TierId t) const {
  std::vector<bool> seen(options_.slots[t], false);
  std::uint32_t used = 0;
  std::uint32_t clean = 0;
  std::uint32_t dirty = 0;
  for (const Object& o : objects_) {
    if (!o.live) continue;
    const Residency holds = static_cast<Residency>(o.valid | o.pending | o.doomed);
    if (resident(holds, t) != (o.slot[t] != kNoSlot))
      return internal_error("a slot without a copy");
    if (o.queue[t] != wanted_queue(o, t)) return internal_error("an object in the wrong queue");
    clean += o.queue[t] == kClean ? 1 : 0;
    dirty += o.queue[t] == kDirty ? 1 : 0;
    if (o.slot[t] == kNoSlot) continue;
    if (o.slot[t] >= seen.size() || seen[o.slot[t]])
      return internal_error("a slot with two owners");
    seen[o.slot[t]] = true;
    ++used;
  }
  for (const SlotId slot : tiers_[t].free) {
    if (seen[slot]) return internal_error("a slot both free and used");
    seen[slot] = true;
  }
  if (used != tiers_[t].used || used + tiers_[t].free.size() != options_.slots[t]) {
    return internal_error("slots are lost");
  }
  if (clean != tiers_[t].clean || dirty != tiers_[t].dirty)
    return internal_error("queues are miscounted");
  return {};
}

std::uint64_t Catalog::digest() const {
  std::uint64_t h = tick_;
  const auto add = [&h](std::uint64_t v) { h = Rng::mix(h ^ v); };
  for (const Object& o : objects_) {
    add(o.tick);
    add((std::uint64_t{o.valid} << 32) | (std::uint64_t{o.pending} << 24) | o.pins);
    for (TierId t = 0; t < kTiers; ++t) add((std::uint64_t{o.slot[t]} << 8) | o.queue[t]);
  }
  for (const Tier& t : tiers_) {
    add(t.used);
    for (const SlotId slot : t.free) add(slot);
  }
  for (const std::uint64_t bytes : tenant_bytes_) add(bytes);
  add(events.size());
  return h;
}

}  // namespace lehr::directory
