// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/directory/service.hpp"

// Small worlds for tests of the placement level.
namespace placement_world {

using namespace lehr;
using namespace lehr::directory;

inline std::vector<std::string_view> keys_of(const std::vector<std::string>& keys) {
  static thread_local std::vector<std::string> kept;  // views stay valid until the next call
  kept = keys;
  return {kept.begin(), kept.end()};
}

inline std::string numbered(std::uint64_t number) {
  std::string key = "k";
  key += std::to_string(number);
  return key;
}

/// Blocks of 2-byte elements; a test says how they lie.
inline Layout elements(std::uint32_t layers, std::uint32_t kv_heads, std::uint32_t tokens,
                       std::uint32_t head_dim) {
  Layout l;
  l.dtype = 1;
  l.element_bytes = 2;
  l.layers = layers;
  l.kv_heads = kv_heads;
  l.tokens = tokens;
  l.head_dim = head_dim;
  return l;
}

/// A directory alone: the test is the mover.
class Bookkeeping {
 public:
  Bookkeeping(std::uint32_t host, std::uint32_t nvme, CatalogOptions catalog = {},
              bool whole_claims = true)
      : directory(options(host, nvme, catalog, whole_claims)) {
    layout.opaque_bytes = 4096;
    desc.model = "toy";
    desc.digest = layout_digest(layout);
    desc.block_bytes = 4096;
    ns = *directory.open_namespace(desc);
  }

  std::vector<ItemRequest> items(const std::vector<std::string>& keys) {
    std::vector<ItemRequest> out;
    for (const std::string_view key : keys_of(keys)) out.push_back({key, 0, 0, false});
    return out;
  }
  Result<JobId> store(const std::vector<std::string>& keys, std::vector<Evicted>& evicted) {
    return directory.prepare_store({ns, 0, kNormalPriority, kAllTiers}, items(keys), evicted);
  }
  Result<JobId> load(const std::vector<std::string>& keys) {
    return directory.prepare_load({ns, 0, false, 0}, items(keys));
  }
  void stored(const std::vector<std::string>& keys) {
    std::vector<Evicted> evicted;
    const auto job = store(keys, evicted);
    REQUIRE(job);
    const auto moving = directory.job(*job)->moving;
    if (moving > 0) REQUIRE(directory.complete(*job, std::vector<ItemOutcome>(moving)));
    REQUIRE(directory.release(*job));
  }
  ItemState look(const std::string& key) {
    LookUp out;
    const auto keys = keys_of({key});
    REQUIRE(directory.lookup(ns, keys, {&out, 1}));
    return out.state;
  }
  PoolId pool(std::uint32_t blocks) {
    PoolDesc made;
    made.layout = layout;
    made.blocks = blocks;
    made.bytes = std::uint64_t{blocks} * 4096;
    return *directory.register_pool(made);
  }
  void write_all() {
    while (const auto w = directory.catalog().next_write())
      directory.catalog().finish_write(*w, true);
  }

  Layout layout;
  NamespaceDesc desc;
  Directory directory;
  NamespaceId ns = 0;

 private:
  static DirectoryOptions options(std::uint32_t host, std::uint32_t nvme, CatalogOptions catalog,
                                  bool whole_claims) {
    DirectoryOptions o;
    o.catalog = catalog;
    o.catalog.slots = {host, nvme};
    o.catalog.block_bytes = 4096;
    o.whole_claims = whole_claims;
    return o;
  }
};

/// The whole service with real bytes, over one pool of `blocks` opaque blocks.
class RealBytes {
 public:
  RealBytes(std::uint32_t blocks, std::uint32_t host, std::uint32_t nvme, const char* faults = "",
            Bytes block_bytes = 4096, CatalogOptions catalog = {})
      : block_bytes_(block_bytes), memory_(blocks * block_bytes) {
    ServiceOptions o;
    o.directory.catalog = catalog;
    o.directory.catalog.slots = {host, nvme};
    o.directory.catalog.block_bytes = block_bytes;
    o.directory.moves_bytes = true;
    o.store.emplace();
    o.store->block_bytes = block_bytes;
    o.store->slots = {host, nvme};
    o.store->nvme_directory = ".";
    o.store->faults = *transfer::FaultPlan::parse(faults);
    auto made = Service::create(o);
    if (!made) FAIL(made.error().what);
    service = *std::move(made);
    Layout layout;
    layout.opaque_bytes = block_bytes;
    PoolDesc pool_desc;
    pool_desc.base = memory_.data();
    pool_desc.bytes = memory_.size();
    pool_desc.blocks = blocks;
    pool_desc.layout = layout;
    NamespaceDesc desc;
    desc.model = "toy";
    desc.digest = layout_digest(layout);
    desc.block_bytes = block_bytes;
    service->with([&](Directory& d) {
      pool = *d.register_pool(pool_desc);
      ns = *d.open_namespace(desc);
    });
  }

  std::span<std::byte> block(std::uint32_t index) {
    return {memory_.data() + index * block_bytes_, block_bytes_};
  }
  void fill(std::uint32_t index, std::uint64_t what) {
    std::uint64_t x = what * 0x9E3779B97F4A7C15ULL + 1;
    for (std::byte& b : block(index)) {
      x = x * 6364136223846793005ULL + 1442695040888963407ULL;
      b = static_cast<std::byte>(x >> 56);
    }
  }
  bool holds(std::uint32_t index, std::uint64_t what) {
    const std::vector<std::byte> before(block(index).begin(), block(index).end());
    fill(index, what);
    const bool same = std::equal(before.begin(), before.end(), block(index).begin());
    std::copy(before.begin(), before.end(), block(index).begin());
    return same;
  }

  Result<JobId> prepare_store(const std::vector<std::string>& keys, std::uint32_t first_block) {
    return service->with([&](Directory& d) {
      std::vector<Evicted> evicted;
      return d.prepare_store({ns, 0, kNormalPriority, kAllTiers}, items(keys, first_block),
                             evicted);
    });
  }
  Result<JobId> prepare_load(const std::vector<std::string>& keys, std::uint32_t first_block,
                             bool partial = false) {
    return service->with([&](Directory& d) {
      return d.prepare_load({ns, 0, partial, 0}, items(keys, first_block));
    });
  }
  /// Submits, waits and releases; the items as they ended.
  std::vector<JobItem> run(JobId job) {
    REQUIRE(service->submit(job));
    const auto done = service->wait(job, 20'000'000'000);
    REQUIRE(done);
    REQUIRE(*done);
    std::vector<JobItem> ended;
    service->with([&](Directory& d) {
      ended = d.job(job)->items;
      REQUIRE(d.release(job));
    });
    return ended;
  }
  LookUp look(const std::string& key) {
    LookUp out;
    service->with([&](Directory& d) { REQUIRE(d.lookup(ns, keys_of({key}), {&out, 1})); });
    return out;
  }
  Stats stats() {
    return service->with([](Directory& d) { return d.stats(); });
  }

  std::unique_ptr<Service> service;
  PoolId pool = 0;
  NamespaceId ns = 0;

 private:
  std::vector<ItemRequest> items(const std::vector<std::string>& keys, std::uint32_t first_block) {
    std::vector<ItemRequest> out;
    for (const std::string_view key : keys_of(keys))
      out.push_back({key, pool, first_block++, false});
    return out;
  }
  Bytes block_bytes_;
  std::vector<std::byte> memory_;
};

}  // namespace placement_world
