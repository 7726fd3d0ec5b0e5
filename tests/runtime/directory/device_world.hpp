// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/directory/service.hpp"
#include "tests/runtime/directory/placement_world.hpp"
#include "tests/support/fake_lanes.hpp"

// A service with a pool in the memory of a device that is not there.
namespace device_world {

using namespace lehr;
using namespace lehr::directory;
using placement_world::numbered;
using test::FakeLanes;

inline constexpr std::int64_t kPatience = 20'000'000'000;

/// What may differ from world to world.
struct Form {
  std::uint32_t heads = 2, tokens = 4, head_dim = 16;
  std::uint32_t threads = 0;  ///< of the store
};

/// Three layers, [layer][K, V][block][head][token], rows padded.
inline Layout scattered(std::uint32_t blocks, const Form& form = {}) {
  Layout l = placement_world::elements(3, form.heads, form.tokens, form.head_dim);
  l.padding = 16;
  l.token_stride = std::uint64_t{2} * form.head_dim + l.padding;
  l.head_stride = form.tokens * l.token_stride;
  l.block_stride = form.heads * l.head_stride;
  l.v_offset = blocks * l.block_stride;
  l.layer_stride = 2 * l.v_offset;
  return l;
}

/// A service with a pool in the stand-in's memory.
class World {
 public:
  World(std::uint32_t blocks, std::uint32_t host, std::uint32_t nvme, const char* faults = "",
        const Form& form = {})
      : layout(scattered(blocks, form)), memory(3 * layout.layer_stride), blocks_(blocks) {
    const Bytes block_bytes = (contents_bytes(layout) + 4095) / 4096 * 4096;
    ServiceOptions o;
    o.directory.catalog.slots = {host, nvme};
    o.directory.catalog.block_bytes = block_bytes;
    o.directory.moves_bytes = true;
    o.store.emplace();
    o.store->block_bytes = block_bytes;
    o.store->threads = form.threads;
    o.store->slots = {host, nvme};
    o.store->nvme_directory = std::string(".");
    o.store->faults = *transfer::FaultPlan::parse(faults);
    o.store->lanes = lanes;
    auto made = Service::create(o);
    if (!made) FAIL(made.error().what);
    service = *std::move(made);
    lanes->own(memory.data(), memory.size());
    pool = *service->register_pool(desc());
    ns = *service->with([&](Directory& d) {
      return d.open_namespace({"m", "", 0, layout_digest(layout), contents_bytes(layout), ""});
    });
    for (std::byte& b : memory) b = std::byte{0xEE};
  }

  PoolDesc desc() {
    PoolDesc made;
    made.base = memory.data();
    made.bytes = memory.size();
    made.blocks = blocks_;
    made.layout = layout;
    made.on_device = true;
    return made;
  }
  /// Contents that name the block and where in it they are.
  std::vector<std::byte> contents(std::uint32_t what) const {
    std::vector<std::byte> all(contents_bytes(layout));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::byte>((what * 131 + i * 7 + i / 256) & 0xFF);
    return all;
  }
  void fill(std::uint32_t block, std::uint32_t what) {
    const std::vector<std::byte> from = contents(what);
    std::size_t at = 0;
    for (const Run& run : block_runs(layout)) {
      std::memcpy(memory.data() + block * layout.block_stride + run.offset, from.data() + at,
                  run.bytes);
      at += run.bytes;
    }
  }
  std::vector<std::byte> read(std::uint32_t block) const {
    std::vector<std::byte> out;
    for (const Run& run : block_runs(layout)) {
      const auto* const from = memory.data() + block * layout.block_stride + run.offset;
      out.insert(out.end(), from, from + run.bytes);
    }
    return out;
  }
  bool holds(std::uint32_t block, std::uint32_t what) const {
    return read(block) == contents(what);
  }
  /// Whether the bytes between rows are as they were.
  bool padding_untouched() const {
    const std::size_t row = layout.token_stride;
    for (std::size_t at = row - layout.padding; at < memory.size(); at += row) {
      for (std::size_t i = 0; i < layout.padding; ++i) {
        if (memory[at + i] != std::byte{0xEE}) return false;
      }
    }
    return true;
  }

  std::vector<ItemRequest> items(std::uint32_t first, std::uint32_t count,
                                 std::uint32_t first_block) {
    keys_.clear();
    for (std::uint32_t i = 0; i < count; ++i) keys_.push_back(numbered(first + i));
    std::vector<ItemRequest> out;
    for (std::uint32_t i = 0; i < count; ++i)
      out.push_back({keys_[i], pool, first_block + i, false});
    return out;
  }
  Result<JobId> prepare_store(std::uint32_t first, std::uint32_t count, std::uint32_t block) {
    return service->with([&](Directory& d) {
      std::vector<Evicted> evicted;
      return d.prepare_store({ns, 0, kNormalPriority, kAllTiers}, items(first, count, block),
                             evicted);
    });
  }
  Result<JobId> prepare_load(std::uint32_t first, std::uint32_t count, std::uint32_t block,
                             bool layered = false) {
    return service->with([&](Directory& d) {
      return d.prepare_load({ns, 0, false, 0, layered}, items(first, count, block));
    });
  }
  /// Waits for a job and returns its items.
  std::vector<JobItem> finish(JobId job) {
    const auto done = service->wait(job, kPatience);
    REQUIRE(done);
    REQUIRE(*done);
    std::vector<JobItem> ended;
    service->with([&](Directory& d) { ended = d.job(job)->items; });
    return ended;
  }
  void stored(std::uint32_t first, std::uint32_t count, std::uint32_t block) {
    const auto job = prepare_store(first, count, block);
    REQUIRE(job);
    REQUIRE(service->submit(*job));
    for (const JobItem& item : finish(*job)) CHECK(item.state == ItemState::kDone);
    REQUIRE(service->release(*job));
    REQUIRE(service->drain(kPatience));
  }
  bool done(JobId job) {
    return service->with([&](Directory& d) { return d.job(job)->state == Job::State::kDone; });
  }

  std::shared_ptr<FakeLanes> lanes = std::make_shared<FakeLanes>();
  Layout layout;
  std::vector<std::byte> memory;
  std::unique_ptr<Service> service;
  PoolId pool = 0;
  NamespaceId ns = 0;

 private:
  std::uint32_t blocks_;
  std::vector<std::string> keys_;
};

inline transfer::StreamOrder behind(FakeLanes::Stream* stream) { return {stream, true, {}}; }

}  // namespace device_world
