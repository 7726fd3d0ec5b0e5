// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/directory.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/move.hpp"

namespace lehr::directory {

namespace {

constexpr std::size_t kMostNamespaces = 4096;
constexpr std::size_t kMostTenants = 1024;
constexpr std::size_t kMostPools = 1024;
constexpr std::size_t kMostTables = 1024;
constexpr std::size_t kMostText = 4096;
// What is moved on a device starts at multiples of this, and is one (kernels/move.hpp).
constexpr std::uint32_t kDeviceGrain = 16;
// Advice needs some look-ups before their outcome says anything.
constexpr std::uint64_t kTellingLookups = 100;

}  // namespace

Directory::Directory(const DirectoryOptions& options)
    : options_(options),
      catalog_(options.catalog),
      pools_(options.id_seed),
      jobs_(options.id_seed),
      leases_(options.id_seed),
      claims_(options.id_seed),
      tables_(options.id_seed) {}

Result<TenantId> Directory::tenant(const std::string& name) {
  if (const auto found = tenant_index_.find(name); found != tenant_index_.end())
    return found->second;
  if (name.size() > kMostText) return invalid("tenant: a name of more than 4096 bytes");
  if (tenant_index_.size() >= kMostTenants) {
    return refused(Reason::kOverBudget, fmt::format("more than {} tenants", kMostTenants));
  }
  const auto id = static_cast<TenantId>(tenant_index_.size());
  tenant_index_.emplace(name, id);
  quotas_.push_back(0);
  return id;
}

Status Directory::set_quota(const std::string& name, Bytes bytes) {
  LEHR_ASSIGN(const TenantId id, tenant(name));
  quotas_[id] = bytes;
  return {};
}

Result<Bytes> Directory::tenant_usage(const std::string& name) const {
  const auto found = tenant_index_.find(name);
  if (found == tenant_index_.end()) return not_found(fmt::format("no tenant '{}'", name));
  return catalog_.tenant_bytes(found->second);
}

Result<NamespaceId> Directory::open_namespace(const NamespaceDesc& desc) {
  if (desc.model.size() > kMostText || desc.salt.size() > kMostText) {
    return invalid("namespace: model and salt may have 4096 bytes each");
  }
  if (desc.block_bytes == 0 || desc.block_bytes > options_.catalog.block_bytes) {
    return invalid(
        fmt::format("namespace {}: blocks of {} bytes, expected 1 to the slot size of {}",
                    desc.model, desc.block_bytes, options_.catalog.block_bytes),
        Reason::kOutOfRange);
  }
  // Lengths first, so that no two different descriptions give the same text.
  const std::string family =
      fmt::format("{}:{}{}:{}{}:{}{}", desc.model.size(), desc.model, desc.salt.size(), desc.salt,
                  desc.tenant.size(), desc.tenant, desc.rank);
  const auto known = family_index_.find(family);
  if (known != family_index_.end()) {
    for (const NamespaceId id : families_[known->second]) {
      if (namespaces_[id].desc.digest == desc.digest) return id;
    }
  }
  if (namespaces_.size() >= kMostNamespaces) {
    return refused(Reason::kOverBudget, fmt::format("more than {} namespaces", kMostNamespaces));
  }
  LEHR_ASSIGN(const TenantId owner, tenant(desc.tenant));
  const std::size_t index = known != family_index_.end() ? known->second : families_.size();
  if (known == family_index_.end()) {
    family_index_.emplace(family, index);
    families_.emplace_back();
  }
  const auto id = static_cast<NamespaceId>(namespaces_.size());
  namespaces_.push_back({desc, index, owner});
  families_[index].push_back(id);
  return id;
}

Result<PoolId> Directory::register_pool(const PoolDesc& desc) {
  LEHR_TRY(check_layout(desc.layout));
  if (desc.blocks == 0) return invalid("pool: no blocks");
  const std::uint64_t span = span_bytes(desc.layout);
  std::uint64_t stride = desc.layout.block_stride;
  if (stride == 0) stride = span;
  if (desc.blocks > 1 && stride < 1) return invalid("pool: block_stride 0");
  const std::uint64_t last = desc.blocks - 1;
  if (desc.bytes < span || (last > 0 && (desc.bytes - span) / last < stride)) {
    return invalid(fmt::format("pool: {} blocks of {} bytes, {} apart, do not fit in {} bytes",
                               desc.blocks, span, stride, desc.bytes),
                   Reason::kOutOfRange);
  }
  if (desc.base == nullptr && options_.moves_bytes) return invalid("pool: no memory given");
  std::shared_ptr<const BlockParts> parts;
  if (desc.on_device) {
    if (last > 0 && stride % kDeviceGrain != 0) {
      return invalid(
          fmt::format("pool: block_stride of {} bytes: in a device's memory a multiple "
                      "of {}",
                      stride, kDeviceGrain));
    }
    LEHR_ASSIGN(BlockParts made,
                block_parts(desc.layout, kernels::PageLayout::kMaxPieces, kDeviceGrain));
    parts = std::make_shared<const BlockParts>(std::move(made));
  }
  if (pools_.size() >= kMostPools) return refused(Reason::kOverBudget, "more than 1024 pools");
  Pool pool;
  pool.desc = desc;
  pool.desc.layout.block_stride = stride;
  pool.digest = layout_digest(desc.layout);
  pool.layers = desc.layout.opaque_bytes > 0 ? 1 : desc.layout.layers;
  pool.parts = std::move(parts);
  pool.runs = std::make_shared<const std::vector<Run>>(block_runs(desc.layout));
  pool.use.resize(desc.blocks, 0);
  pool.claims = std::make_unique<transfer::Reservations>(desc.blocks, 16, options_.whole_claims);
  const PoolId id = pools_.insert(std::move(pool));
  for (const std::string& line : advice()) {
    catalog_.events.push(
        {Event::Kind::kWarning, kHostTier, Reason::kNone, kNone, line.substr(0, kMostKeyBytes), 0});
  }
  return id;
}

Status Directory::unregister_pool(PoolId id) {
  const Pool* pool = pools_.find(id);
  if (pool == nullptr) return Error{Code::kStale, Reason::kNone, "pool: not registered"};
  if (pool->open_items > 0) {
    return refused(Reason::kLeased,
                   fmt::format("pool: {} items of open jobs use it", pool->open_items));
  }
  bool claimed = false;
  claims_.each([&](const Claim& claim) { claimed = claimed || claim.pool == id; });
  if (claimed) return refused(Reason::kLeased, "pool: there are claims on it");
  if (pool->tables > 0)
    return refused(Reason::kLeased, fmt::format("pool: {} tables are of it", pool->tables));
  pools_.erase(id);
  return {};
}

// --- tables -------------------------------------------------------------------------------------

Result<TableId> Directory::open_table(const BlockTable& table) {
  Pool* pool = pools_.find(table.pool);
  if (pool == nullptr)
    return Error{Code::kStale, Reason::kNone, "table: the pool is not registered"};
  if (tables_.size() >= kMostTables)
    return refused(Reason::kOverBudget, fmt::format("more than {} tables", kMostTables));
  ++pool->tables;
  return tables_.insert(table);
}

Status Directory::close_table(TableId id) {
  const BlockTable* table = tables_.find(id);
  if (table == nullptr) return Error{Code::kStale, Reason::kNone, "table: closed already"};
  if (table->open_items > 0) {
    return refused(Reason::kLeased,
                   fmt::format("table: {} items of open jobs are in it", table->open_items));
  }
  if (Pool* pool = pools_.find(table->pool)) --pool->tables;
  tables_.erase(id);
  return {};
}

Result<std::byte*> Directory::table_entry(const BlockTable& table, std::uint32_t row,
                                          std::uint32_t column) const {
  if (row >= table.rows || column >= table.columns) {
    return invalid(fmt::format("table: entry {}, {} of {} rows and {} columns", row, column,
                               table.rows, table.columns),
                   Reason::kOutOfRange);
  }
  return table.base + (std::uint64_t{row} * table.columns + column) * table.entry_bytes();
}

Result<std::uint64_t> Directory::table_value(const BlockTable& table, std::uint32_t block) const {
  const Pool* pool = pools_.find(table.pool);
  const bool index = table.form == BlockTable::Form::kIndex;
  if (block == kNoBlock) return index ? ~std::uint64_t{0} : std::uint64_t{0};
  if (block >= pool->desc.blocks) {
    return invalid(fmt::format("table: block {} of {}", block, pool->desc.blocks),
                   Reason::kOutOfRange);
  }
  if (index) return std::uint64_t{block};
  return reinterpret_cast<std::uint64_t>(pool->desc.base) + block * pool->desc.layout.block_stride;
}

bool Directory::in_other_layout(NamespaceId ns, std::string_view key) const {
  for (const NamespaceId other : families_[namespaces_[ns].family]) {
    if (other == ns) continue;
    const ObjectId id = catalog_.find(other, key);
    if (id != kNone && catalog_.at(id).valid != 0) return true;
  }
  return false;
}

Result<std::size_t> Directory::lookup(NamespaceId ns, std::span<const std::string_view> keys,
                                      std::span<LookUp> out) {
  if (ns >= namespaces_.size()) return invalid("look-up: no such namespace");
  for (const std::string_view key : keys) {
    if (key.empty() || key.size() > kMostKeyBytes) {
      return invalid(
          fmt::format("look-up: a key of {} bytes, expected 1 to {}", key.size(), kMostKeyBytes));
    }
  }
  std::size_t prefix = 0;
  counts_.lookups += keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const ObjectId id = catalog_.find(ns, keys[i]);
    LookUp& answer = out[i];
    answer = {};
    if (id != kNone && catalog_.at(id).valid != 0) {
      answer.state = ItemState::kHit;
      answer.tier = resident(catalog_.at(id).valid, kHostTier) ? kHostTier : kNvmeTier;
      ++counts_.lookup_hits;
      prefix += prefix == i ? 1 : 0;
    } else if (id != kNone && catalog_.at(id).pending != 0) {
      answer.state = ItemState::kPending;
      ++counts_.lookup_pending;
    } else {
      ++counts_.lookup_misses;
      if (in_other_layout(ns, keys[i])) {
        answer.reason = Reason::kLayoutMismatch;
        ++counts_.layout_mismatches;
      }
    }
  }
  return prefix;
}

Result<LeaseId> Directory::lease(NamespaceId ns, std::span<const std::string_view> keys) {
  if (ns >= namespaces_.size()) return invalid("lease: no such namespace");
  if (keys.empty()) return invalid("lease: no keys");
  Lease lease;
  for (const std::string_view key : keys) {
    const ObjectId id = catalog_.find(ns, key);
    if (id == kNone || catalog_.at(id).valid == 0) {
      return not_found(fmt::format("lease: key {} of {} has no valid copy",
                                   lease.objects.size() + 1, keys.size()));
    }
    lease.objects.push_back(id);
  }
  for (const ObjectId id : lease.objects) catalog_.pin(id);
  return leases_.insert(std::move(lease));
}

Status Directory::release_lease(LeaseId id) {
  const Lease* lease = leases_.find(id);
  if (lease == nullptr) return Error{Code::kStale, Reason::kNone, "lease: released already"};
  for (const ObjectId object : lease->objects) catalog_.unpin(object);
  leases_.erase(id);
  return {};
}

Status Directory::remove(NamespaceId ns, std::string_view key) {
  if (ns >= namespaces_.size()) return invalid("remove: no such namespace");
  const ObjectId id = catalog_.find(ns, key);
  if (id == kNone) return not_found("remove: no such key");
  return catalog_.remove(id);
}

// --- claims -------------------------------------------------------------------------------------

void Directory::run_claims(PoolId id) {
  Pool* pool = pools_.find(id);
  if (pool == nullptr) return;
  while (const auto decision = pool->claims->next()) {
    Claim* claim = claims_.find(claim_groups_.at(decision->group));
    if (decision->kind == transfer::Reservations::Decision::kGrant) {
      claim->state = ClaimState::kGranted;
      claim->held += claim->need;
      claim->need = 0;
    } else {
      claim->state = ClaimState::kRolledBack;
      claim->need += claim->held;
      claim->held = 0;
    }
  }
}

Result<ClaimId> Directory::open_claim(PoolId id, std::uint32_t held, std::uint32_t need) {
  Pool* pool = pools_.find(id);
  if (pool == nullptr)
    return Error{Code::kStale, Reason::kNone, "claim: the pool is not registered"};
  if (need == 0 && held == 0) return invalid("claim: neither held nor needed blocks");
  const transfer::Reservations::Group group = next_group_;
  const Status taken = pool->claims->request(group, need, held);
  if (!taken) {
    count_refusal(taken.error());
    return taken.error();
  }
  ++next_group_;
  const ClaimId claim = claims_.insert(
      {id, group, need == 0 ? ClaimState::kGranted : ClaimState::kWaiting, held, need, 0});
  claim_groups_.emplace(group, claim);
  run_claims(id);
  return claim;
}

Status Directory::extend_claim(ClaimId id, std::uint32_t need) {
  Claim* claim = claims_.find(id);
  if (claim == nullptr) return Error{Code::kStale, Reason::kNone, "claim: closed already"};
  if (need == 0) return invalid("claim: need must be at least 1");
  if (claim->state != ClaimState::kGranted) {
    return refused(Reason::kPending, "claim: its last need is not granted yet");
  }
  Pool* pool = pools_.find(claim->pool);
  LEHR_TRY(pool->claims->request(claim->group, need, claim->held));
  claim->need = need;
  claim->state = ClaimState::kWaiting;
  run_claims(claim->pool);
  return {};
}

Result<ClaimState> Directory::claim_state(ClaimId id) {
  Claim* claim = claims_.find(id);
  if (claim == nullptr) return Error{Code::kStale, Reason::kNone, "claim: closed already"};
  // Told once: having given its blocks back, the claim waits for its whole need like any other.
  const ClaimState state = claim->state;
  if (state == ClaimState::kRolledBack) {
    claim->state = ClaimState::kWaiting;
    run_claims(claim->pool);
  }
  return state;
}

Status Directory::close_claim(ClaimId id) {
  const Claim* claim = claims_.find(id);
  if (claim == nullptr) return Error{Code::kStale, Reason::kNone, "claim: closed already"};
  if (claim->open_items > 0) {
    return refused(Reason::kLeased, "claim: jobs still load into its blocks");
  }
  const PoolId pool = claim->pool;
  pools_.find(pool)->claims->finish(claim->group);
  claim_groups_.erase(claim->group);
  claims_.erase(id);
  run_claims(pool);
  return {};
}

// --- observation --------------------------------------------------------------------------------

void Directory::count_refusal(const Error& error) {
  if (error.reason == Reason::kNoEvictable) ++counts_.refused_no_evictable;
  if (error.reason == Reason::kLowerTierBusy) ++counts_.refused_lower_tier_busy;
  if (error.reason == Reason::kOverBudget) ++counts_.refused_over_budget;
  if (error.reason == Reason::kQuota) ++counts_.refused_quota;
}

Stats Directory::stats() const {
  Stats all = catalog_.stats;
#define LEHR_STAT(name, unit, help) all.name += counts_.name;
#define LEHR_GAUGE(name, unit, help)
#include "runtime/directory/stats.def"
#undef LEHR_STAT
#undef LEHR_GAUGE
  all.keys = catalog_.keys();
  all.host_used = catalog_.used(kHostTier);
  all.host_slots = catalog_.slots(kHostTier);
  all.nvme_used = catalog_.used(kNvmeTier);
  all.nvme_slots = catalog_.slots(kNvmeTier);
  all.waiting_write = catalog_.waiting_write();
  all.pinned = catalog_.pinned();
  all.jobs_open = jobs_.size();
  all.events_dropped = catalog_.events.dropped();
  return all;
}

std::vector<std::string> Directory::advice() const {
  std::vector<std::string> lines;
  std::uint64_t pool_blocks = 0;
  pools_.each([&](const Pool& pool) { pool_blocks += pool.desc.blocks; });
  const std::uint64_t below = std::uint64_t{catalog_.slots(kHostTier)} + catalog_.slots(kNvmeTier);
  if (pool_blocks > 0 && below <= pool_blocks) {
    std::string line = fmt::format(
        "the tiers below hold {} blocks, the pools above them {}: an engine that stores every "
        "block it "
        "fills keeps nothing there that its pools do not hold, too",
        below, pool_blocks);
    const Stats now = stats();
    if (now.lookups >= kTellingLookups) {
      line += fmt::format("; {} of {} look-ups hit so far", now.lookup_hits, now.lookups);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace lehr::directory
