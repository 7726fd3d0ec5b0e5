// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/directory/catalog.hpp"
#include "runtime/directory/layout.hpp"
#include "runtime/directory/slot_map.hpp"
#include "transfer/reservation.hpp"

namespace lehr::directory {

struct DirectoryOptions {
  CatalogOptions catalog;
  std::uint32_t most_jobs = 4096;
  bool moves_bytes =
      false;  ///< a mover carries out submitted jobs; else the caller moves and completes
  std::uint32_t id_seed = 1;  ///< ids of two directories differ
  bool whole_claims = true;  ///< off only in control runs: claims are granted piecemeal, and strand
};

struct NamespaceDesc {
  std::string model;
  std::string salt;
  std::uint32_t rank = 0;
  LayoutDigest digest{};
  Bytes block_bytes = 0;  ///< contents of a block
  std::string tenant;
};

struct PoolDesc {
  std::byte* base = nullptr;  ///< may be null where no bytes are moved
  std::uint64_t bytes = 0;
  std::uint32_t blocks = 0;
  Layout layout;
  bool on_device = false;  ///< memory of the runtime's device, which the host does not read
};

struct LookUp {
  ItemState state = ItemState::kMiss;
  TierId tier = 0;
  Reason reason =
      Reason::kNone;  ///< of a miss: kLayoutMismatch if the key is there in another layout
};

/// A table of blocks that the caller's kernels read: [rows][columns] at an address that stays.
struct BlockTable {
  enum class Form : std::uint8_t { kIndex, kPointer };
  PoolId pool = 0;
  Form form = Form::kIndex;  ///< int32 block numbers, none is -1; or uint64 addresses, none is 0
  std::uint32_t rows = 0, columns = 0;
  std::byte* base = nullptr;
  std::uint32_t open_items = 0;
  std::uint32_t entry_bytes() const { return form == Form::kIndex ? 4 : 8; }
  std::byte absent() const { return form == Form::kIndex ? std::byte{0xFF} : std::byte{0}; }
};

struct ItemRequest {
  std::string_view key;
  PoolId pool = 0;  ///< 0: none; only where no bytes are moved
  std::uint32_t block = 0;
  bool no_store = false;
  TableId table = 0;  ///< of a load: which entry says where the block is, once it is there; 0: none
  std::uint32_t row = 0, column = 0;
};

struct StoreRequest {
  NamespaceId ns = 0;
  std::uint64_t caller_id = 0;
  std::uint8_t priority = kNormalPriority;
  Residency allowed = kAllTiers;
};

struct LoadRequest {
  NamespaceId ns = 0;
  std::uint64_t caller_id = 0;
  bool partial = false;  ///< load what is there; else one missing key refuses all
  ClaimId claim = 0;     ///< 0: none
  bool layered = false;  ///< on a device: layer by layer, each with an event
};

struct JobItem {
  ItemState state = ItemState::kMiss;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  ObjectId object = kNone;
  PoolId pool = 0;
  std::uint32_t block = 0;
  TierId tier = 0;  ///< store: into; load: out of
  SlotId slot = kNoSlot;
  SlotId host_copy = kNoSlot;  ///< load from below: the host slot that keeps a copy on the way
  TableId table = 0;
  std::uint32_t row = 0, column = 0;
};

struct Job {
  enum class Kind : std::uint8_t { kStore, kLoad };
  enum class State : std::uint8_t { kPrepared, kQueued, kRunning, kDone };
  Kind kind = Kind::kStore;
  State state = State::kPrepared;
  bool on_device = false;  ///< where the blocks of its pools are
  bool layered = false;
  std::uint64_t caller_id = 0;
  ClaimId claim = 0;
  std::uint32_t moving = 0;  ///< items still in kMove
  std::uint32_t succeeded = 0;
  std::uint32_t failed = 0;
  std::vector<JobItem> items;
};

/// What became of one moved item.
struct ItemOutcome {
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  std::uint64_t checksum = 0;  ///< of a store
  bool host_copy = false;      ///< a load also left right bytes in its host copy
};

struct Pool {
  PoolDesc desc;
  LayoutDigest digest{};
  std::shared_ptr<const std::vector<Run>> runs;  ///< shared with moves that are under way
  std::shared_ptr<const BlockParts> parts;       ///< of pools on a device
  std::uint32_t layers = 1;
  std::uint32_t tables = 0;       ///< open ones
  std::vector<std::int32_t> use;  ///< by block: readers (stores), or -1: being loaded into
  std::uint32_t open_items = 0;
  std::unique_ptr<transfer::Reservations> claims;
};

enum class ClaimState : std::uint8_t { kWaiting, kGranted, kRolledBack };

/// The placement level: which keys are where, what to store, what may leave, who holds what. Moves
/// nothing itself: a job is prepared here, carried out by a mover or by the caller, and completed
/// here. Every refusal leaves the state as it was. Not thread-safe (service.hpp is).
class Directory {
 public:
  explicit Directory(const DirectoryOptions& options);

  /// The same description gives the same id. kOutOfRange when blocks are larger than slots.
  Result<NamespaceId> open_namespace(const NamespaceDesc& desc);
  Result<PoolId> register_pool(const PoolDesc& desc);
  Status unregister_pool(PoolId pool);
  Status set_quota(const std::string& tenant, Bytes bytes);
  Result<Bytes> tenant_usage(const std::string& tenant) const;

  /// Fills `out` (keys.size()) and returns the length of the longest prefix of hits.
  Result<std::size_t> lookup(NamespaceId ns, std::span<const std::string_view> keys,
                             std::span<LookUp> out);

  Result<JobId> prepare_store(const StoreRequest& request, std::span<const ItemRequest> items,
                              std::vector<Evicted>& evicted);
  Result<JobId> prepare_load(const LoadRequest& request, std::span<const ItemRequest> items);
  /// The caller moved the bytes: one outcome for each item in kMove, in order. Only without a
  /// mover.
  Status complete(JobId job, std::span<const ItemOutcome> outcomes);
  /// `started`: its bytes move already, so that it can no longer be cancelled.
  Status submit(JobId job, bool started = false);
  /// What submit() would refuse.
  Status check_submit(JobId job) const;
  Status cancel(JobId job);
  const Job* job(JobId id) const { return jobs_.find(id); }
  Status release(JobId job);
  /// The next finished job that was not reported yet.
  bool pop_finished(JobId& out);
  bool has_finished() const { return !finished_.empty(); }

  // For the mover.
  bool pop_submitted(JobId& out);
  bool has_submitted() const { return !submitted_.empty(); }
  Pool* pool(PoolId id) { return pools_.find(id); }
  const Pool* pool(PoolId id) const { return pools_.find(id); }
  void finish_item(JobId job, std::size_t index, const ItemOutcome& outcome);

  /// All keys or none. A lease keeps copies where they are until released.
  Result<LeaseId> lease(NamespaceId ns, std::span<const std::string_view> keys);
  Status release_lease(LeaseId lease);
  Status remove(NamespaceId ns, std::string_view key);

  /// A claim on blocks of a pool by somebody who holds some and needs more before it can run and
  /// give them back. Whole needs are granted at once, so that claims never strand each other.
  /// `need` may be 0 for one that only holds blocks as yet.
  Result<ClaimId> open_claim(PoolId pool, std::uint32_t held, std::uint32_t need);
  /// A granted claim asks for more.
  Status extend_claim(ClaimId claim, std::uint32_t need);
  Result<ClaimState> claim_state(ClaimId claim);
  /// All of the claim's blocks are free again.
  Status close_claim(ClaimId claim);

  /// With its memory, all entries none. A pool is not given back while it has tables.
  Result<TableId> open_table(const BlockTable& table);
  /// Refused with kLeased while jobs are to write entries.
  Status close_table(TableId table);
  const BlockTable* table(TableId id) const { return tables_.find(id); }
  /// The address of an entry, refused with kOutOfRange outside the table; and its value for a block
  /// of the table's pool, kNoBlock for none.
  Result<std::byte*> table_entry(const BlockTable& table, std::uint32_t row,
                                 std::uint32_t column) const;
  Result<std::uint64_t> table_value(const BlockTable& table, std::uint32_t block) const;

  Stats stats() const;
  bool pop_event(Event& out) { return catalog_.events.pop(out); }
  /// What a person should know of this configuration, with numbers; empty if nothing.
  std::vector<std::string> advice() const;
  Catalog& catalog() { return catalog_; }
  const DirectoryOptions& options() const { return options_; }
  std::size_t namespaces() const { return namespaces_.size(); }

 private:
  struct Namespace {
    NamespaceDesc desc;
    std::size_t family = 0;
    TenantId tenant = 0;
  };
  struct Claim {
    PoolId pool = 0;
    transfer::Reservations::Group group = 0;
    ClaimState state = ClaimState::kWaiting;
    std::uint32_t held = 0, need = 0;
    std::uint32_t open_items = 0;
  };
  struct Lease {
    std::vector<ObjectId> objects;
  };

  Result<TenantId> tenant(const std::string& name);
  Status check_item(NamespaceId ns, const ItemRequest& item, const std::string& where,
                    bool load) const;
  Status check_entry(const ItemRequest& item, const std::string& where, bool load) const;
  JobItem look_up(NamespaceId ns, const ItemRequest& wanted) const;
  Result<Claim*> claim_of(const LoadRequest& request, std::span<const ItemRequest> items);
  Status check_items(NamespaceId ns, std::span<const ItemRequest> items, bool load);
  bool on_device(const ItemRequest& item) const;
  Status check_quota(TenantId tenant, std::uint32_t fresh, std::span<const ObjectId> keep,
                     std::vector<Evicted>& evicted);
  bool in_other_layout(NamespaceId ns, std::string_view key) const;
  void begin_use(const JobItem& item, Job::Kind kind);
  void end_use(const JobItem& item, Job::Kind kind);
  void finish_store(JobItem& item, const ItemOutcome& outcome);
  void finish_load(JobItem& item, const ItemOutcome& outcome);
  JobId enter(Job job);
  void settle(JobId id, Job& job);
  void run_claims(PoolId pool);
  void count_refusal(const Error& error);

  DirectoryOptions options_;
  Catalog catalog_;
  std::vector<Namespace> namespaces_;
  std::vector<std::vector<NamespaceId>> families_;
  std::map<std::string, std::size_t> family_index_;
  std::map<std::string, TenantId> tenant_index_;
  std::vector<Bytes> quotas_;
  SlotMap<Pool> pools_;
  SlotMap<Job> jobs_;
  SlotMap<Lease> leases_;
  SlotMap<Claim> claims_;
  SlotMap<BlockTable> tables_;
  std::map<transfer::Reservations::Group, ClaimId> claim_groups_;
  std::uint64_t next_group_ = 1;
  std::deque<JobId> submitted_;
  std::deque<JobId> finished_;
  Stats counts_;
};

}  // namespace lehr::directory
