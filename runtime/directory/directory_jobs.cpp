// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <unordered_set>

#include <fmt/format.h>

#include "kernels/base/check.hpp"
#include "runtime/directory/directory.hpp"

namespace lehr::directory {

namespace {

constexpr std::size_t kMostItems = 65536;

Error stale_job() { return {Code::kStale, Reason::kNone, "job: released already"}; }

}  // namespace

Status Directory::check_items(NamespaceId ns, std::span<const ItemRequest> items, bool load) {
  if (ns >= namespaces_.size()) return invalid("job: no such namespace");
  if (items.empty() || items.size() > kMostItems) {
    return invalid(fmt::format("job: {} items, expected 1 to {}", items.size(), kMostItems));
  }
  if (jobs_.size() >= options_.most_jobs) {
    return refused(Reason::kOverBudget, fmt::format("job: {} are open, the limit", jobs_.size()));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    LEHR_TRY(check_item(ns, items[i], fmt::format("job, item {}", i), load));
    if (on_device(items[i]) != on_device(items[0])) {
      return invalid(fmt::format(
          "job, item {}: its pool is not where item 0's is (host memory, or the device)", i));
    }
  }
  if (!load) return {};
  std::set<std::pair<PoolId, std::uint32_t>> targets;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].pool != 0 && !targets.insert({items[i].pool, items[i].block}).second) {
      return invalid(fmt::format("job, item {}: block {} is named twice", i, items[i].block));
    }
  }
  return {};
}

bool Directory::on_device(const ItemRequest& item) const {
  const Pool* pool = pools_.find(item.pool);
  return pool != nullptr && pool->desc.on_device;
}

Status Directory::check_item(NamespaceId ns, const ItemRequest& item, const std::string& where,
                             bool load) const {
  if (item.key.empty() || item.key.size() > kMostKeyBytes) {
    return invalid(fmt::format("{}: a key of {} bytes, expected 1 to {}", where, item.key.size(),
                               kMostKeyBytes));
  }
  if (item.pool == 0) return options_.moves_bytes ? Status(invalid(where + ": no pool")) : Status{};
  const Pool* pool = pools_.find(item.pool);
  if (pool == nullptr)
    return Error{Code::kStale, Reason::kNone, where + ": the pool is not registered"};
  if (pool->digest != namespaces_[ns].desc.digest) {
    return invalid(where + ": the pool's layout is not the namespace's", Reason::kLayoutMismatch);
  }
  if (item.block >= pool->desc.blocks) {
    return invalid(fmt::format("{}: block {} of {}", where, item.block, pool->desc.blocks),
                   Reason::kOutOfRange);
  }
  const std::int32_t use = pool->use[item.block];
  if (use < 0 || (load && use > 0)) {
    return refused(Reason::kLeased,
                   fmt::format("{}: block {} is in use by another job", where, item.block));
  }
  return item.table == 0 ? Status() : check_entry(item, where, load);
}

Status Directory::check_entry(const ItemRequest& item, const std::string& where, bool load) const {
  if (!load) return invalid(where + ": only loads write entries of tables");
  const BlockTable* entries = tables_.find(item.table);
  if (entries == nullptr)
    return Error{Code::kStale, Reason::kNone, where + ": the table is closed"};
  if (entries->pool != item.pool) return invalid(where + ": its table is of another pool");
  const auto entry = table_entry(*entries, item.row, item.column);
  return entry ? Status() : Status(entry.error());
}

Status Directory::check_quota(TenantId owner, std::uint32_t fresh, std::span<const ObjectId> keep,
                              std::vector<Evicted>& evicted) {
  const Bytes quota = quotas_[owner];
  if (quota == 0 || fresh == 0) return {};
  const Bytes block = options_.catalog.block_bytes;
  const Bytes wanted = catalog_.tenant_bytes(owner) + fresh * block;
  if (wanted <= quota) return {};
  const auto over = static_cast<std::uint32_t>((wanted - quota + block - 1) / block);
  if (fresh * block <= quota && catalog_.evict_of_tenant(owner, over, keep, evicted)) return {};
  return refused(Reason::kQuota,
                 fmt::format("the tenant's quota is {} bytes, {} are in use, {} more are "
                             "needed and its own blocks cannot leave",
                             quota, catalog_.tenant_bytes(owner), fresh * block));
}

void Directory::begin_use(const JobItem& item, Job::Kind kind) {
  Pool* pool = pools_.find(item.pool);
  if (pool == nullptr) return;
  ++pool->open_items;
  if (BlockTable* entries = tables_.find(item.table)) ++entries->open_items;
  if (kind == Job::Kind::kStore) {
    ++pool->use[item.block];
  } else {
    pool->use[item.block] = -1;
  }
}

void Directory::end_use(const JobItem& item, Job::Kind kind) {
  Pool* pool = pools_.find(item.pool);
  if (pool == nullptr) return;
  --pool->open_items;
  if (BlockTable* entries = tables_.find(item.table)) --entries->open_items;
  if (kind == Job::Kind::kStore) {
    --pool->use[item.block];
  } else {
    pool->use[item.block] = 0;
  }
}

Result<JobId> Directory::prepare_store(const StoreRequest& request,
                                       std::span<const ItemRequest> items,
                                       std::vector<Evicted>& evicted) {
  evicted.clear();
  LEHR_TRY(check_items(request.ns, items, false));
  if ((request.allowed & kAllTiers) == 0) return invalid("store: no tier is allowed");
  if (request.priority >= kPriorities) return invalid("store: no such priority");
  Residency allowed = request.allowed & kAllTiers;
  if (options_.catalog.slots[kNvmeTier] == 0) allowed &= tier_bit(kHostTier);
  if (allowed == 0) return refused(Reason::kNoSpace, "store: the allowed tiers have no capacity");
  Job job;
  job.kind = Job::Kind::kStore;
  job.on_device = on_device(items[0]);
  job.caller_id = request.caller_id;
  std::vector<ObjectId> present;
  std::unordered_set<std::string_view> named;
  for (const ItemRequest& item : items) {
    JobItem out;
    out.pool = item.pool;
    out.block = item.block;
    const ObjectId known = catalog_.find(request.ns, item.key);
    if (item.no_store || !named.insert(item.key).second) {
      out.state = ItemState::kSkipped;
    } else if (known != kNone && catalog_.at(known).valid != 0) {
      out.state = ItemState::kPresent;
      present.push_back(known);
    } else if (known != kNone) {
      out.state = ItemState::kPending;
    } else {
      out.state = ItemState::kMove;
      ++job.moving;
    }
    job.items.push_back(out);
  }
  const Namespace& ns = namespaces_[request.ns];
  Status room = catalog_.check_room(kHostTier, job.moving, present);
  if (room) room = check_quota(ns.tenant, job.moving, present, evicted);
  if (!room) {
    count_refusal(room.error());
    return room.error();
  }
  for (const ObjectId id : present) catalog_.pin(id);
  for (std::size_t i = 0; i < items.size(); ++i) {
    JobItem& item = job.items[i];
    if (item.state != ItemState::kMove) continue;
    item.tier = kHostTier;
    item.object = catalog_.create(
        {request.ns, ns.tenant, items[i].key, ns.desc.block_bytes, request.priority, allowed},
        kHostTier, evicted);
    item.slot = catalog_.at(item.object).slot[kHostTier];
    begin_use(item, job.kind);
  }
  for (const ObjectId id : present) catalog_.unpin(id);
  return enter(std::move(job));
}

/// What a load would do for an item: move it, wait for its store, or miss.
JobItem Directory::look_up(NamespaceId ns, const ItemRequest& wanted) const {
  JobItem item;
  item.pool = wanted.pool;
  item.block = wanted.block;
  item.table = wanted.table;
  item.row = wanted.row;
  item.column = wanted.column;
  const ObjectId id = catalog_.find(ns, wanted.key);
  if (id == kNone) return item;
  if (catalog_.at(id).valid != 0) {
    item.state = ItemState::kMove;
    item.object = id;
  } else if (catalog_.at(id).pending != 0) {
    item.state = ItemState::kPending;
  }
  return item;
}

/// A job from here on; one with nothing to move has ended.
JobId Directory::enter(Job job) {
  const bool empty = job.moving == 0;
  const JobId id = jobs_.insert(std::move(job));
  if (empty) settle(id, *jobs_.find(id));
  return id;
}

/// The claim that a load names, or null.
Result<Directory::Claim*> Directory::claim_of(const LoadRequest& request,
                                              std::span<const ItemRequest> items) {
  if (request.claim == 0) return nullptr;
  Claim* claim = claims_.find(request.claim);
  if (claim == nullptr) return Error{Code::kStale, Reason::kNone, "load: the claim is closed"};
  if (claim->state != ClaimState::kGranted)
    return refused(Reason::kPending, "load: the claim is not granted yet");
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].pool != claim->pool)
      return invalid(fmt::format("load, item {}: not of the claim's pool", i));
  }
  return claim;
}

Result<JobId> Directory::prepare_load(const LoadRequest& request,
                                      std::span<const ItemRequest> items) {
  LEHR_TRY(check_items(request.ns, items, true));
  LEHR_ASSIGN(Claim* const claim, claim_of(request, items));
  Job job;
  job.kind = Job::Kind::kLoad;
  job.on_device = on_device(items[0]);
  job.layered = request.layered;
  job.caller_id = request.caller_id;
  job.claim = request.claim;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const JobItem& item = job.items.emplace_back(look_up(request.ns, items[i]));
    if (item.state == ItemState::kMove) {
      ++job.moving;
    } else if (!request.partial && item.state == ItemState::kPending) {
      return refused(Reason::kPending, fmt::format("load, item {}: the key is being stored", i));
    } else if (!request.partial) {
      return not_found(fmt::format("load, item {}: no valid copy", i));
    }
  }
  if (claim != nullptr && job.moving + claim->open_items > claim->held) {
    const Error error = refused(
        Reason::kOverBudget, fmt::format("load: {} blocks, {} are being loaded, the claim holds {}",
                                         job.moving, claim->open_items, claim->held));
    count_refusal(error);
    return error;
  }
  if (claim != nullptr) claim->open_items += job.moving;
  // Pinned first: making room for a copy on the way must not evict what is to be loaded.
  for (const JobItem& item : job.items) {
    if (item.state == ItemState::kMove) catalog_.pin(item.object);
  }
  for (JobItem& item : job.items) {
    if (item.state != ItemState::kMove) continue;
    item.tier = resident(catalog_.at(item.object).valid, kHostTier) ? kHostTier : kNvmeTier;
    item.slot = catalog_.at(item.object).slot[item.tier];
    if (item.tier != kHostTier) item.host_copy = catalog_.reserve_copy(item.object, kHostTier);
    begin_use(item, job.kind);
  }
  return enter(std::move(job));
}

// --- the end of items and jobs ------------------------------------------------------------------

void Directory::finish_store(JobItem& item, const ItemOutcome& outcome) {
  if (outcome.code == Code::kOk) {
    ++counts_.stored;
    counts_.stored_bytes += catalog_.at(item.object).bytes;
    catalog_.publish(item.object, item.tier, outcome.checksum);
    catalog_.maintain();
  } else {
    ++counts_.store_failures;
    catalog_.abandon(item.object, item.tier);
  }
}

void Directory::finish_load(JobItem& item, const ItemOutcome& outcome) {
  if (item.host_copy != kNoSlot) {
    if (outcome.host_copy) {
      ++counts_.promoted;
      catalog_.publish(item.object, kHostTier, catalog_.at(item.object).checksum);
    } else {
      catalog_.abandon(item.object, kHostTier);
    }
  }
  if (outcome.code == Code::kOk) {
    ++counts_.loaded;
    counts_.loaded_bytes += catalog_.at(item.object).bytes;
    ++(item.tier == kHostTier ? counts_.loaded_from_host : counts_.loaded_from_nvme);
  } else {
    ++counts_.load_failures;
    // What could not be read once is not offered again; a cancelled load says nothing of the copy.
    if (outcome.code != Code::kCancelled) {
      ++(outcome.code == Code::kCorrupt ? counts_.checksum_failures : counts_.io_failures);
      catalog_.condemn(item.object, item.tier, outcome.reason);
    }
  }
  catalog_.unpin(item.object);
}

void Directory::finish_item(JobId id, std::size_t index, const ItemOutcome& outcome) {
  Job* job = jobs_.find(id);
  LEHR_CHECK(1, job != nullptr && index < job->items.size());
  JobItem& item = job->items[index];
  LEHR_CHECK(1, item.state == ItemState::kMove);
  item.code = outcome.code;
  item.reason = outcome.reason;
  item.state = outcome.code == Code::kOk          ? ItemState::kDone
               : outcome.code == Code::kCancelled ? ItemState::kCancelled
                                                  : ItemState::kFailed;
  ++(outcome.code == Code::kOk ? job->succeeded : job->failed);
  if (job->kind == Job::Kind::kStore) {
    finish_store(item, outcome);
  } else {
    finish_load(item, outcome);
  }
  end_use(item, job->kind);
  if (Claim* claim = claims_.find(job->claim); claim != nullptr) --claim->open_items;
  if (--job->moving == 0) settle(id, *job);
}

void Directory::settle(JobId id, Job& job) {
  job.state = Job::State::kDone;
  finished_.push_back(id);
}

Status Directory::complete(JobId id, std::span<const ItemOutcome> outcomes) {
  Job* job = jobs_.find(id);
  if (job == nullptr) return stale_job();
  if (options_.moves_bytes) {
    return unsupported("job: this runtime moves the bytes itself; submit the job instead");
  }
  if (job->state != Job::State::kPrepared) return invalid("job: completed already");
  if (outcomes.size() != job->moving) {
    return invalid(
        fmt::format("job: {} outcomes for {} items to move", outcomes.size(), job->moving));
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < job->items.size(); ++i) {
    if (job->items[i].state != ItemState::kMove) continue;
    ItemOutcome outcome = outcomes[next++];
    outcome.host_copy = outcome.code == Code::kOk;
    finish_item(id, i, outcome);
  }
  // Completed by the caller: there is nothing to report back.
  finished_.erase(std::remove(finished_.begin(), finished_.end(), id), finished_.end());
  return {};
}

Status Directory::check_submit(JobId id) const {
  const Job* job = jobs_.find(id);
  if (job == nullptr) return stale_job();
  if (!options_.moves_bytes)
    return unsupported("job: this runtime moves no bytes; complete the job instead");
  const bool empty = job->state == Job::State::kDone && job->succeeded + job->failed == 0;
  if (job->state != Job::State::kPrepared && !empty) return invalid("job: submitted already");
  return {};
}

Status Directory::submit(JobId id, bool started) {
  LEHR_TRY(check_submit(id));
  Job* job = jobs_.find(id);
  if (job->state == Job::State::kDone) return {};  // nothing to move
  job->state = started ? Job::State::kRunning : Job::State::kQueued;
  submitted_.push_back(id);
  return {};
}

bool Directory::pop_submitted(JobId& out) {
  if (submitted_.empty()) return false;
  out = submitted_.front();
  submitted_.pop_front();
  jobs_.find(out)->state = Job::State::kRunning;
  return true;
}

Status Directory::cancel(JobId id) {
  Job* job = jobs_.find(id);
  if (job == nullptr) return stale_job();
  if (job->state == Job::State::kDone) return invalid("job: it is done");
  if (job->state == Job::State::kRunning)
    return refused(Reason::kPending, "job: its bytes are moving");
  submitted_.erase(std::remove(submitted_.begin(), submitted_.end(), id), submitted_.end());
  for (std::size_t i = 0; i < job->items.size(); ++i) {
    if (job->items[i].state == ItemState::kMove) {
      finish_item(id, i, {Code::kCancelled, Reason::kNone, 0, false});
    }
  }
  return {};
}

Status Directory::release(JobId id) {
  const Job* job = jobs_.find(id);
  if (job == nullptr) return stale_job();
  if (job->state != Job::State::kDone) {
    return refused(Reason::kPending, "job: neither completed nor cancelled");
  }
  finished_.erase(std::remove(finished_.begin(), finished_.end(), id), finished_.end());
  jobs_.erase(id);
  return {};
}

bool Directory::pop_finished(JobId& out) {
  if (finished_.empty()) return false;
  out = finished_.front();
  finished_.pop_front();
  return true;
}

}  // namespace lehr::directory
