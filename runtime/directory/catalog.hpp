// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/directory/event_ring.hpp"
#include "runtime/directory/types.hpp"

namespace lehr::directory {

struct CatalogOptions {
  std::array<std::uint32_t, kTiers> slots{};
  Bytes block_bytes = 0;
  std::uint32_t most_keys = 1U << 20;
  double high_watermark = 1;
  double low_watermark = 1;
  bool drop_when_busy =
      false;  ///< lose a block that is not written down yet, rather than refuse a store
  std::uint32_t write_queue = 64;
  std::size_t events = 4096;
};

/// What a new object is.
struct NewObject {
  NamespaceId ns = 0;
  TenantId tenant = 0;
  std::string_view key;
  Bytes bytes = 0;
  std::uint8_t priority = kNormalPriority;
  Residency allowed = kAllTiers;
};

struct EvictReport {
  std::uint32_t evicted = 0;
  std::uint32_t examined = 0;  ///< objects looked at: the cost of the pass
};

/// A copy to write from a tier to the one below.
struct WriteDown {
  ObjectId object = kNone;
  TierId from = 0, to = 0;
  SlotId from_slot = kNoSlot, to_slot = kNoSlot;
};

/// Which keys have copies where, which slots they take, and which leave when room is needed. Pure
/// bookkeeping: no bytes, threads or clocks; not thread-safe. A copy is evictable when nothing pins
/// its object and, if a tier below may hold it, once it was written there. Victims: lowest
/// priority, then least recently used. All operations cost O(1) in the number of keys, evictions
/// O(tenants) a victim.
class Catalog {
 public:
  struct Object {
    std::string_view key;  ///< of the map's node, without the namespace prefix
    NamespaceId ns = 0;
    TenantId tenant = 0;
    Bytes bytes = 0;
    std::uint64_t tick = 0;
    std::uint64_t checksum = 0;
    std::uint32_t pins = 0;
    std::uint8_t priority = kNormalPriority;
    std::uint8_t failed_writes = 0;
    bool live = false;
    bool written = false;  ///< was written down once; never again
    Residency allowed = 0;
    Residency valid = 0;
    Residency pending = 0;  ///< slot taken, bytes on their way
    Residency doomed = 0;   ///< no longer valid; the slot is freed with the last pin
    std::array<SlotId, kTiers> slot{};
    std::array<std::uint8_t, kTiers> queue{};  ///< 0 none, 1 clean, 2 dirty
    std::array<std::uint32_t, kTiers> next{}, previous{};
  };

  explicit Catalog(const CatalogOptions& options);

  ObjectId find(NamespaceId ns, std::string_view key) const;
  const Object& at(ObjectId id) const { return objects_[id]; }

  /// Whether `count` new objects of `tenant` fit in `tier`, when the objects of `keep` may not
  /// leave for them. Nothing changes. kNoEvictable, kLowerTierBusy or kOverBudget say why not.
  Status check_room(TierId tier, std::uint32_t count, std::span<const ObjectId> keep) const;
  /// A new object with a slot in `tier`, bytes on their way. check_room() must have said yes.
  ObjectId create(const NewObject& what, TierId tier, std::vector<Evicted>& evicted);
  /// The bytes of a pending copy arrived.
  void publish(ObjectId id, TierId tier, std::uint64_t checksum);
  /// A pending copy will not come: its slot is free, and the object gone if it was all.
  void abandon(ObjectId id, TierId tier);
  /// A second copy of a pinned object in a faster tier, if it has or can get room. kNoSlot if not.
  SlotId reserve_copy(ObjectId id, TierId tier);

  void pin(ObjectId id);
  void unpin(ObjectId id);
  void touch(ObjectId id);
  /// The copy turned out unreadable: no longer valid, its slot freed with the last pin.
  void condemn(ObjectId id, TierId tier, Reason reason);
  /// Drops every copy; refused while pinned or pending.
  Status remove(ObjectId id);
  /// Evicts `count` whole keys of one tenant, its least recent first; false, and nothing done,
  /// where that many are not evictable. Keys of `keep` stay.
  bool evict_of_tenant(TenantId tenant, std::uint32_t count, std::span<const ObjectId> keep,
                       std::vector<Evicted>& evicted);

  /// Evicts a share of the evictable copies of a tier, at least one if there is any.
  EvictReport evict_share(TierId tier, double share);
  /// Above the high watermark: evicts down to the low one. Returns how many left.
  std::uint32_t maintain();

  /// The next copy to write down; its object is pinned until finish_write().
  std::optional<WriteDown> next_write();
  void finish_write(const WriteDown& write, bool ok);

  std::uint32_t used(TierId tier) const { return tiers_[tier].used; }
  std::uint32_t slots(TierId tier) const { return options_.slots[tier]; }
  std::uint32_t evictable(TierId tier) const { return tiers_[tier].clean; }
  std::uint32_t waiting_write() const;
  std::uint32_t writes_in_flight() const { return writes_; }
  /// Slots' worth of bytes of the tenant's keys, each key once.
  std::uint64_t tenant_bytes(TenantId tenant) const;
  std::uint32_t keys() const { return static_cast<std::uint32_t>(index_.size()); }
  std::uint32_t pinned() const { return pinned_; }
  const CatalogOptions& options() const { return options_; }

  Stats stats;
  EventRing events;

  /// Lists, slots and counts agree. O(keys).
  Status validate() const;
  /// A digest of everything that decides the future, for tests of refusals.
  std::uint64_t digest() const;

 private:
  struct Queue {
    std::uint32_t head = kNone, tail = kNone;
  };
  struct Tier {
    std::vector<SlotId> free;
    std::uint32_t used = 0;
    std::uint32_t clean = 0, dirty = 0;
    std::vector<Queue> clean_queues;  ///< [tenant * kPriorities + priority]
    Queue dirty_queue;
  };
  struct KeyHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const;
  };
  struct KeyEqual {
    using is_transparent = void;
    bool operator()(std::string_view a, std::string_view b) const { return a == b; }
  };

  Queue& queue_of(TierId tier, const Object& object);
  void enqueue(ObjectId id, TierId tier, std::uint8_t kind);
  void dequeue(ObjectId id, TierId tier);
  void requeue(ObjectId id);
  Status validate_tier(TierId tier) const;
  std::uint8_t wanted_queue(const Object& object, TierId tier) const;
  bool has_lower(const Object& object, TierId tier) const;
  ObjectId victim(TierId tier) const;
  bool evict_one(TierId tier, std::vector<Evicted>* evicted);
  void drop_copy(ObjectId id, TierId tier, Reason reason, bool for_room);
  SlotId take_slot(TierId tier, std::vector<Evicted>* evicted);
  void give_slot(TierId tier, SlotId slot);
  void erase_if_empty(ObjectId id);
  void account(TenantId tenant, std::int64_t bytes);

  CatalogOptions options_;
  std::array<Tier, kTiers> tiers_;
  std::vector<Object> objects_;
  std::vector<ObjectId> free_objects_;
  std::unordered_map<std::string, ObjectId, KeyHash, KeyEqual> index_;
  std::vector<std::uint64_t> tenant_bytes_;
  std::uint64_t tick_ = 0;
  std::uint32_t writes_ = 0;
  std::uint32_t pinned_ = 0;
};

}  // namespace lehr::directory
