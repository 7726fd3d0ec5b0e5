// SPDX-License-Identifier: Apache-2.0
// The placement level: namespaces, pools, look-up, leases, claims, events.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/capi/placement_args.hpp"

namespace lehr::capi {

Result<directory::NamespaceId> namespace_of(Instance& instance, lehr_namespace handle) {
  LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kNamespace, instance, handle.id));
  const auto index = static_cast<directory::NamespaceId>(id & 0xFFFFFF);
  const std::size_t known =
      instance.placement->with([](directory::Directory& d) { return d.namespaces(); });
  if (id >> 24 != (instance.seed & 0xFFFFFF) || index >= known) {
    return Error{Code::kStale, Reason::kNone, "a namespace of another runtime"};
  }
  return index;
}

lehr_namespace to_handle(Instance& instance, directory::NamespaceId id) {
  const std::uint64_t seeded = (std::uint64_t{instance.seed & 0xFFFFFF} << 24) | id;
  return {make_handle(Kind::kNamespace, instance, seeded)};
}

Result<std::vector<std::string_view>> keys_of(const lehr_bytes* keys, std::size_t count) {
  std::vector<std::string_view> out;
  if (count > 0) LEHR_TRY(not_null(keys, "keys"));
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    LEHR_ASSIGN(const std::string_view key, bytes_of(keys[i], "keys"));
    out.push_back(key);
  }
  return out;
}

void copy_key(const std::string& key, std::uint8_t (&out)[LEHR_MAX_KEY_BYTES + 1],
              std::uint32_t& size) {
  size = static_cast<std::uint32_t>(std::min<std::size_t>(key.size(), LEHR_MAX_KEY_BYTES));
  std::memcpy(out, key.data(), size);
}

namespace {

Result<directory::Layout> layout_of(const lehr_layout* given) {
  LEHR_ASSIGN(const lehr_layout l, read_struct(given, "layout"));
  if (l.fused > 1) return invalid("layout.fused: expected 0 or 1");
  directory::Layout out;
  out.opaque_bytes = l.opaque_bytes;
  out.dtype = l.dtype;
  out.element_bytes = l.element_bytes;
  out.layers = l.layers;
  out.kv_heads = l.kv_heads;
  out.tokens = l.tokens;
  out.head_dim = l.head_dim;
  out.fused = l.fused != 0;
  out.block_stride = l.block_stride;
  out.layer_stride = l.layer_stride;
  out.head_stride = l.head_stride;
  out.token_stride = l.token_stride;
  out.k_offset = l.k_offset;
  out.v_offset = l.v_offset;
  out.padding = l.padding;
  return out;
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;
using directory::Directory;

extern "C" {

lehr_status lehr_namespace_open(lehr_runtime runtime, const lehr_namespace_desc* desc,
                                lehr_namespace* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const lehr_namespace_desc given, read_struct(desc, "desc"));
    LEHR_ASSIGN(const directory::Layout layout, layout_of(given.layout));
    LEHR_TRY(directory::check_layout(layout));
    directory::NamespaceDesc ns;
    LEHR_ASSIGN(ns.model, bytes_of(given.model, "desc.model"));
    LEHR_ASSIGN(ns.salt, bytes_of(given.salt, "desc.salt"));
    LEHR_ASSIGN(ns.tenant, bytes_of(given.tenant, "desc.tenant"));
    ns.rank = given.rank;
    ns.digest = directory::layout_digest(layout);
    ns.block_bytes = directory::contents_bytes(layout);
    LEHR_ASSIGN(const directory::NamespaceId id,
                instance.placement->with([&](Directory& d) { return d.open_namespace(ns); }));
    *out = to_handle(instance, id);
    return {};
  });
}

lehr_status lehr_pool_register(lehr_runtime runtime, const lehr_pool_desc* desc, lehr_pool* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const lehr_pool_desc given, read_struct(desc, "desc"));
    if (given.memory != LEHR_MEMORY_HOST && given.memory != LEHR_MEMORY_DEVICE)
      return unsupported("desc.memory: expected LEHR_MEMORY_HOST or LEHR_MEMORY_DEVICE");
    directory::PoolDesc pool;
    LEHR_ASSIGN(pool.layout, layout_of(given.layout));
    pool.base = static_cast<std::byte*>(given.base);
    pool.bytes = given.bytes;
    pool.blocks = given.blocks;
    pool.on_device = given.memory == LEHR_MEMORY_DEVICE;
    LEHR_ASSIGN(const directory::PoolId id, instance.placement->register_pool(pool));
    out->id = make_handle(Kind::kPool, instance, id);
    return {};
  });
}

lehr_status lehr_pool_unregister(lehr_runtime runtime, lehr_pool pool) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kPool, instance, pool.id));
    return instance.placement->with([&](Directory& d) { return d.unregister_pool(id); });
  });
}

lehr_status lehr_tenant_set_quota(lehr_runtime runtime, const lehr_bytes* tenant, uint64_t bytes) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(tenant, "tenant"));
    LEHR_ASSIGN(const std::string_view name, bytes_of(*tenant, "tenant"));
    return instance.placement->with(
        [&](Directory& d) { return d.set_quota(std::string(name), bytes); });
  });
}

lehr_status lehr_tenant_usage(lehr_runtime runtime, const lehr_bytes* tenant, uint64_t* bytes) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(tenant, "tenant"));
    LEHR_TRY(not_null(bytes, "bytes"));
    LEHR_ASSIGN(const std::string_view name, bytes_of(*tenant, "tenant"));
    LEHR_ASSIGN(*bytes, instance.placement->with(
                            [&](Directory& d) { return d.tenant_usage(std::string(name)); }));
    return {};
  });
}

lehr_status lehr_lookup(lehr_runtime runtime, lehr_namespace ns, const lehr_bytes* keys,
                        size_t count, lehr_lookup_result* results, size_t* prefix) {
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    LEHR_ASSIGN(const directory::NamespaceId id, namespace_of(instance, ns));
    LEHR_ASSIGN(const auto names, keys_of(keys, count));
    LEHR_ASSIGN(const auto out, StructArray<lehr_lookup_result>::of(results, count, "results"));
    std::vector<directory::LookUp> found(count);
    Result<std::size_t> hits = std::size_t{0};
    const bool answered =
        instance.placement->try_with([&](Directory& d) { hits = d.lookup(id, names, found); });
    if (!hits) return std::move(hits).error();
    for (std::size_t i = 0; i < count; ++i) {
      lehr_lookup_result result{};
      result.state = answered ? static_cast<int32_t>(found[i].state) : LEHR_KEY_RETRY;
      result.tier = found[i].tier;
      result.reason = static_cast<int32_t>(found[i].reason);
      out.write(i, result);
    }
    if (prefix != nullptr) *prefix = *hits;
    return lehr_status{answered ? LEHR_OK : LEHR_RETRY};
  });
}

lehr_status lehr_lease_acquire(lehr_runtime runtime, lehr_namespace ns, const lehr_bytes* keys,
                               size_t count, lehr_lease* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const directory::NamespaceId id, namespace_of(instance, ns));
    LEHR_ASSIGN(const auto names, keys_of(keys, count));
    LEHR_ASSIGN(const directory::LeaseId lease,
                instance.placement->with([&](Directory& d) { return d.lease(id, names); }));
    out->id = make_handle(Kind::kLease, instance, lease);
    return {};
  });
}

lehr_status lehr_lease_release(lehr_runtime runtime, lehr_lease lease) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kLease, instance, lease.id));
    return instance.placement->with([&](Directory& d) { return d.release_lease(id); });
  });
}

lehr_status lehr_remove(lehr_runtime runtime, lehr_namespace ns, const lehr_bytes* keys,
                        size_t count, lehr_status* statuses) {
  return with_placement(runtime, [&](Instance& instance) -> Result<lehr_status> {
    LEHR_ASSIGN(const directory::NamespaceId id, namespace_of(instance, ns));
    LEHR_ASSIGN(const auto names, keys_of(keys, count));
    return batch(count, statuses, [&](std::size_t i) {
      return instance.placement->with([&](Directory& d) { return d.remove(id, names[i]); });
    });
  });
}

lehr_status lehr_claim_open(lehr_runtime runtime, lehr_pool pool, uint32_t held, uint32_t need,
                            lehr_claim* out) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kPool, instance, pool.id));
    LEHR_ASSIGN(const directory::ClaimId claim, instance.placement->with([&](Directory& d) {
      return d.open_claim(id, held, need);
    }));
    out->id = make_handle(Kind::kClaim, instance, claim);
    return {};
  });
}

lehr_status lehr_claim_extend(lehr_runtime runtime, lehr_claim claim, uint32_t need) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kClaim, instance, claim.id));
    return instance.placement->with([&](Directory& d) { return d.extend_claim(id, need); });
  });
}

lehr_status lehr_claim_query(lehr_runtime runtime, lehr_claim claim, int32_t* state) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(state, "state"));
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kClaim, instance, claim.id));
    LEHR_ASSIGN(const directory::ClaimState found,
                instance.placement->with([&](Directory& d) { return d.claim_state(id); }));
    *state = static_cast<int32_t>(found);
    return {};
  });
}

lehr_status lehr_claim_close(lehr_runtime runtime, lehr_claim claim) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kClaim, instance, claim.id));
    return instance.placement->with([&](Directory& d) { return d.close_claim(id); });
  });
}

lehr_status lehr_events_read(lehr_runtime runtime, lehr_event* events, size_t capacity,
                             size_t* count, uint64_t* dropped) {
  return with_placement(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(count, "count"));
    LEHR_ASSIGN(const auto out, StructArray<lehr_event>::of(events, capacity, "events"));
    instance.placement->with([&](Directory& d) {
      directory::Event event;
      std::size_t taken = 0;
      while (taken < out.size() && d.pop_event(event)) {
        lehr_event e{};
        e.kind = static_cast<int32_t>(event.kind);
        e.tier = event.tier;
        e.reason = static_cast<int32_t>(event.reason);
        if (event.ns != directory::kNone) e.ns = to_handle(instance, event.ns);
        e.bytes = event.bytes;
        copy_key(event.key, e.key, e.key_size);
        out.write(taken++, e);
      }
      *count = taken;
      if (dropped != nullptr) *dropped = d.stats().events_dropped;
    });
    return {};
  });
}

}  // extern "C"
