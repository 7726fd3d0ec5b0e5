// SPDX-License-Identifier: Apache-2.0
// The placement level: jobs.
#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "runtime/capi/placement_args.hpp"

namespace lehr::capi {
namespace {

using directory::Directory;
using directory::ItemState;
using directory::Job;

Result<std::vector<directory::ItemRequest>> items_of(Instance& instance, const lehr_item* items,
                                                     std::size_t count) {
  LEHR_ASSIGN(const auto given, StructArray<const lehr_item>::of(items, count, "items"));
  std::vector<directory::ItemRequest> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    LEHR_ASSIGN(const lehr_item item, given.read(i, "items"));
    if ((item.flags & ~static_cast<std::uint32_t>(LEHR_ITEM_NO_STORE)) != 0) {
      return invalid(fmt::format("items, element {}: unknown flags", i));
    }
    directory::ItemRequest request;
    LEHR_ASSIGN(request.key, bytes_of({item.key, item.key_size}, "items.key"));
    request.block = item.block;
    request.no_store = (item.flags & LEHR_ITEM_NO_STORE) != 0;
    if (item.pool.id != 0) {
      LEHR_ASSIGN(request.pool, handle_id(Kind::kPool, instance, item.pool.id));
    }
    if (item.table.id != 0) {
      LEHR_ASSIGN(request.table, handle_id(Kind::kTable, instance, item.table.id));
      request.row = item.row;
      request.column = item.column;
    }
    out.push_back(request);
  }
  return out;
}

lehr_item_state to_c(const directory::JobItem& item) {
  lehr_item_state out{};
  out.state = static_cast<int32_t>(item.state);
  if (item.code != Code::kOk) out.status = to_status({item.code, item.reason, {}});
  out.tier = item.tier;
  out.slot = item.slot;
  out.host_slot = item.host_copy;
  return out;
}

lehr_job_report to_c(Instance& instance, directory::JobId id, const Job& job) {
  lehr_job_report out{};
  out.kind = job.kind == Job::Kind::kStore ? LEHR_JOB_STORE : LEHR_JOB_LOAD;
  out.job.id = make_handle(Kind::kJob, instance, id);
  out.caller_id = job.caller_id;
  out.state = static_cast<int32_t>(job.state);
  out.items = static_cast<uint32_t>(job.items.size());
  out.succeeded = job.succeeded;
  out.failed = job.failed;
  out.status = LEHR_PENDING;
  if (job.state != Job::State::kDone) return out;
  out.status = LEHR_OK;
  if (job.failed == 0) return out;
  out.status = LEHR_PARTIAL;
  if (job.succeeded > 0) return out;
  for (const directory::JobItem& item : job.items) {
    if (item.code == Code::kOk) continue;
    out.status = to_status({item.code, item.reason, {}});
    break;
  }
  return out;
}

template <class One>
Result<lehr_status> for_jobs(Instance& instance, const lehr_job* jobs, size_t count,
                             lehr_status* statuses, One one) {
  if (count > 0) LEHR_TRY(not_null(jobs, "jobs"));
  return batch(count, statuses, [&](std::size_t i) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, jobs[i].id));
    return one(*instance.placement, id);
  });
}

template <class One>
lehr_status each_job(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                     lehr_status* statuses, One one) {
  return with_placement(
      runtime, [&](Instance& instance) { return for_jobs(instance, jobs, count, statuses, one); });
}

Error stale_job() { return {Code::kStale, Reason::kNone, "the job was released"}; }

// The states of a job that was just prepared.
void write_states(Directory& d, directory::JobId id, const StructArray<lehr_item_state>& states) {
  if (!states) return;
  const auto& items = d.job(id)->items;
  for (std::size_t i = 0; i < items.size(); ++i) states.write(i, to_c(items[i]));
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

lehr_status lehr_store_prepare(lehr_runtime runtime, const lehr_store_request* request,
                               const lehr_item* items, size_t count, lehr_item_state* states,
                               lehr_evicted* evicted, size_t evicted_capacity,
                               size_t* evicted_count, lehr_job* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const lehr_store_request given, read_struct(request, "request"));
    directory::StoreRequest store;
    LEHR_ASSIGN(store.ns, namespace_of(instance, given.ns));
    store.caller_id = given.caller_id;
    if (given.priority < LEHR_PRIORITY_LOW || given.priority > LEHR_PRIORITY_HIGH) {
      return invalid(fmt::format("request.priority: {}, expected -1 to 1", given.priority),
                     Reason::kOutOfRange);
    }
    store.priority = static_cast<std::uint8_t>(given.priority + directory::kNormalPriority);
    if ((given.tiers & ~std::uint32_t{directory::kAllTiers}) != 0) {
      return invalid("request.tiers: unknown tiers", Reason::kOutOfRange);
    }
    store.allowed = given.tiers == 0 ? directory::kAllTiers : static_cast<Residency>(given.tiers);
    LEHR_ASSIGN(const auto wanted, items_of(instance, items, count));
    LEHR_ASSIGN(const auto state_out,
                StructArray<lehr_item_state>::of(states, count, "states", true));
    LEHR_ASSIGN(const auto evicted_out,
                StructArray<lehr_evicted>::of(evicted, evicted_capacity, "evicted"));
    std::vector<directory::Evicted> left;
    LEHR_ASSIGN(const directory::JobId id,
                instance.placement->with([&](Directory& d) -> Result<directory::JobId> {
                  LEHR_ASSIGN(const directory::JobId made, d.prepare_store(store, wanted, left));
                  write_states(d, made, state_out);
                  return made;
                }));
    for (std::size_t i = 0; i < std::min(left.size(), evicted_out.size()); ++i) {
      lehr_evicted e{};
      e.tier = left[i].tier;
      e.ns = to_handle(instance, left[i].ns);
      e.reason = static_cast<int32_t>(left[i].reason);
      copy_key(left[i].key, e.key, e.key_size);
      evicted_out.write(i, e);
    }
    if (evicted_count != nullptr) *evicted_count = left.size();
    out->id = make_handle(Kind::kJob, instance, id);
    return {};
  });
}

lehr_status lehr_load_prepare(lehr_runtime runtime, const lehr_load_request* request,
                              const lehr_item* items, size_t count, lehr_item_state* states,
                              lehr_job* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const lehr_load_request given, read_struct(request, "request"));
    if ((given.flags & ~static_cast<std::uint32_t>(LEHR_LOAD_PARTIAL | LEHR_LOAD_LAYERED)) != 0) {
      return invalid("request.flags: unknown flags");
    }
    directory::LoadRequest load;
    LEHR_ASSIGN(load.ns, namespace_of(instance, given.ns));
    load.caller_id = given.caller_id;
    load.partial = (given.flags & LEHR_LOAD_PARTIAL) != 0;
    load.layered = (given.flags & LEHR_LOAD_LAYERED) != 0;
    if (given.claim.id != 0) {
      LEHR_ASSIGN(load.claim, handle_id(Kind::kClaim, instance, given.claim.id));
    }
    LEHR_ASSIGN(const auto wanted, items_of(instance, items, count));
    LEHR_ASSIGN(const auto state_out,
                StructArray<lehr_item_state>::of(states, count, "states", true));
    LEHR_ASSIGN(const directory::JobId id,
                instance.placement->with([&](Directory& d) -> Result<directory::JobId> {
                  LEHR_ASSIGN(const directory::JobId made, d.prepare_load(load, wanted));
                  write_states(d, made, state_out);
                  return made;
                }));
    out->id = make_handle(Kind::kJob, instance, id);
    return {};
  });
}

lehr_status lehr_jobs_submit(lehr_runtime runtime, const lehr_job* jobs, size_t count, void* stream,
                             lehr_status* statuses) {
  return each_job(runtime, jobs, count, statuses,
                  [stream](directory::Service& service, directory::JobId id) {
                    return service.submit(id, {stream, true, {}});
                  });
}

lehr_status lehr_jobs_submit_after(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                                   const lehr_order* after, lehr_status* statuses) {
  constexpr std::uint64_t kMostEvents = 64;
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    LEHR_ASSIGN(const lehr_order given, read_struct(after, "after"));
    if ((given.flags & ~static_cast<std::uint32_t>(LEHR_ORDER_EVENTS_ONLY)) != 0)
      return invalid("after.flags: unknown flags");
    const bool after_stream = (given.flags & LEHR_ORDER_EVENTS_ONLY) == 0;
    if (!after_stream && given.stream != nullptr)
      return invalid("after.stream: given, and not to be waited for");
    if (given.event_count > kMostEvents) {
      return invalid(
          fmt::format("after.event_count: {}, at most {}", given.event_count, kMostEvents),
          Reason::kOutOfRange);
    }
    if (given.event_count > 0) LEHR_TRY(not_null(given.events, "after.events"));
    const std::span<void* const> events(given.events, given.event_count);
    for (const void* event : events) LEHR_TRY(not_null(event, "after.events"));
    return for_jobs(instance, jobs, count, statuses,
                    [&](directory::Service& service, directory::JobId id) {
                      return service.submit(id, {given.stream, after_stream, events});
                    });
  });
}

lehr_status lehr_job_wait_layer(lehr_runtime runtime, lehr_job job, uint32_t layer, void* stream) {
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    LEHR_ASSIGN(const bool held, instance.placement->hold(id, layer, stream));
    return lehr_status{held ? LEHR_OK : LEHR_PENDING};
  });
}

lehr_status lehr_job_event(lehr_runtime runtime, lehr_job job, void** event) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(event, "event"));
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    LEHR_ASSIGN(*event, instance.placement->event(id));
    return {};
  });
}

lehr_status lehr_job_complete(lehr_runtime runtime, lehr_job job, const lehr_status* results,
                              size_t count) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    if (count > 0) LEHR_TRY(not_null(results, "results"));
    std::vector<bool> moving;
    const bool known = instance.placement->with([&](Directory& d) {
      const Job* found = d.job(id);
      if (found == nullptr) return false;
      for (const auto& item : found->items) moving.push_back(item.state == ItemState::kMove);
      return true;
    });
    if (!known) return stale_job();
    if (count != moving.size()) {
      return invalid(fmt::format("results: {} for a job of {} items", count, moving.size()),
                     Reason::kOutOfRange);
    }
    std::vector<directory::ItemOutcome> outcomes;
    for (std::size_t i = 0; i < count; ++i) {
      if (!moving[i]) continue;
      directory::ItemOutcome outcome;
      const int32_t code = LEHR_STATUS_CLASS(results[i]);
      if (results[i] > 0 || code > LEHR_CLASS_INTERNAL || (results[i] < 0 && code == 0)) {
        return invalid(
            fmt::format("results, element {}: {} is no status of an ended item", i, results[i]));
      }
      outcome.code = static_cast<Code>(code);
      outcome.reason = static_cast<Reason>(LEHR_STATUS_REASON(results[i]));
      outcomes.push_back(outcome);
    }
    return instance.placement->complete(id, outcomes);
  });
}

lehr_status lehr_jobs_cancel(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                             lehr_status* statuses) {
  return each_job(
      runtime, jobs, count, statuses,
      [](directory::Service& service, directory::JobId id) { return service.cancel(id); });
}

lehr_status lehr_jobs_poll(lehr_runtime runtime, lehr_job_report* reports, size_t capacity,
                           size_t* count) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(count, "count"));
    LEHR_ASSIGN(const auto out, StructArray<lehr_job_report>::of(reports, capacity, "reports"));
    std::size_t taken = 0;
    while (taken < out.size()) {
      const auto id = instance.placement->poll();
      if (!id) break;
      instance.placement->with([&](Directory& d) {
        // Another thread may have released it just now: then there is nothing to tell.
        if (const Job* job = d.job(*id)) out.write(taken++, to_c(instance, *id, *job));
      });
    }
    *count = taken;
    return {};
  });
}

lehr_status lehr_jobs_event_fd(lehr_runtime runtime, int32_t* fd) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(fd, "fd"));
    *fd = instance.placement->event_fd();
    return {};
  });
}

lehr_status lehr_job_query(lehr_runtime runtime, lehr_job job, lehr_job_report* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    return instance.placement->with([&](Directory& d) -> Status {
      const Job* found = d.job(id);
      if (found == nullptr) return stale_job();
      write_struct(out, size, to_c(instance, id, *found));
      return {};
    });
  });
}

lehr_status lehr_job_items(lehr_runtime runtime, lehr_job job, lehr_item_state* states,
                           size_t capacity, size_t* count) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(count, "count"));
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    LEHR_ASSIGN(const auto out, StructArray<lehr_item_state>::of(states, capacity, "states"));
    return instance.placement->with([&](Directory& d) -> Status {
      const Job* found = d.job(id);
      if (found == nullptr) return stale_job();
      for (std::size_t i = 0; i < std::min(out.size(), found->items.size()); ++i) {
        out.write(i, to_c(found->items[i]));
      }
      *count = found->items.size();
      return {};
    });
  });
}

lehr_status lehr_job_wait(lehr_runtime runtime, lehr_job job, int64_t timeout_ns) {
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kJob, instance, job.id));
    if (timeout_ns < 0) return invalid("timeout_ns: negative");
    LEHR_ASSIGN(const bool done, instance.placement->wait(id, timeout_ns));
    return lehr_status{done ? LEHR_OK : LEHR_PENDING};
  });
}

lehr_status lehr_jobs_drain(lehr_runtime runtime, int64_t timeout_ns) {
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    if (timeout_ns < 0) return invalid("timeout_ns: negative");
    return lehr_status{instance.placement->drain(timeout_ns) ? LEHR_OK : LEHR_PENDING};
  });
}

lehr_status lehr_jobs_release(lehr_runtime runtime, const lehr_job* jobs, size_t count,
                              lehr_status* statuses) {
  return each_job(
      runtime, jobs, count, statuses,
      [](directory::Service& service, directory::JobId id) { return service.release(id); });
}

}  // extern "C"
