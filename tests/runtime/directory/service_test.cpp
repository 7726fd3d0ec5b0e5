// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/service.hpp"

#include <thread>

#include <catch2/catch.hpp>
#include <poll.h>

#include "tests/runtime/directory/placement_world.hpp"

using namespace lehr;
using namespace lehr::directory;
using placement_world::numbered;
using placement_world::RealBytes;

namespace {

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

TEST_CASE("bytes come back as they were stored, from host and from nvme") {
  RealBytes w(16, 4, 32);
  for (std::uint32_t b = 0; b < 8; ++b) w.fill(b, 100 + b);
  for (std::uint32_t b = 0; b < 8; b += 2) {
    const auto job = w.prepare_store({numbered(b), numbered(b + 1)}, b);
    REQUIRE(job);
    for (const JobItem& item : w.run(*job)) CHECK(item.state == ItemState::kDone);
    REQUIRE(w.service->drain(20'000'000'000));
  }
  CHECK(w.stats().written_back == 8);
  CHECK(w.look("k0").tier == kNvmeTier);  // four host slots: the first four left for nvme
  CHECK(w.look("k7").tier == kHostTier);
  const auto job = w.prepare_load({"k0", "k7", "k1"}, 8);
  REQUIRE(job);
  for (const JobItem& item : w.run(*job)) CHECK(item.state == ItemState::kDone);
  CHECK(w.holds(8, 100));
  CHECK(w.holds(9, 107));
  CHECK(w.holds(10, 101));
  CHECK(w.stats().loaded_from_nvme == 2);
  CHECK(w.stats().promoted == 2);
  CHECK(w.look("k0").tier == kHostTier);  // the load kept a copy on its way
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}

TEST_CASE("a load larger than host passes through") {
  RealBytes w(64, 4, 64);
  for (std::uint32_t b = 0; b < 40; b += 4) {
    for (std::uint32_t i = b; i < b + 4; ++i) w.fill(i, i);
    std::vector<std::string> keys;
    for (std::uint32_t i = b; i < b + 4; ++i) keys.push_back(numbered(i));
    const auto job = w.prepare_store(keys, b);
    REQUIRE(job);
    w.run(*job);
    REQUIRE(w.service->drain(20'000'000'000));
  }
  for (std::uint32_t b = 0; b < 40; ++b) w.fill(b, 9999);
  std::vector<std::string> keys;
  for (std::uint32_t i = 0; i < 40; ++i) keys.push_back(numbered(i));
  const auto job = w.prepare_load(keys, 0);
  REQUIRE(job);
  w.run(*job);
  for (std::uint32_t b = 0; b < 40; ++b) CHECK(w.holds(b, b));
}

TEST_CASE("strided pools are gathered and scattered, padding untouched") {
  ServiceOptions o;
  o.directory.catalog.slots = {4, 0};
  o.directory.catalog.block_bytes = 4096;
  o.directory.moves_bytes = true;
  o.store.emplace();
  o.store->block_bytes = 4096;
  o.store->slots = {4, 0};
  auto service = *Service::create(o);
  // [layers 2][K, V][blocks 3][heads 2][tokens 4][dim 8] of 2 bytes, rows padded to 24 bytes.
  Layout l = placement_world::elements(2, 2, 4, 8);
  l.padding = 8;
  l.token_stride = 24;
  l.head_stride = 4 * 24;
  l.block_stride = 2 * 4 * 24;
  l.v_offset = 3 * l.block_stride;
  l.layer_stride = 2 * l.v_offset;
  std::vector<std::byte> memory(2 * l.layer_stride);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 37 % 251);
  const std::vector<std::byte> original = memory;
  PoolDesc desc;
  desc.base = memory.data();
  desc.bytes = memory.size();
  desc.blocks = 3;
  desc.layout = l;
  PoolId pool = 0;
  NamespaceId ns = 0;
  JobId job = 0;
  const auto run = [&](bool store, std::uint32_t block) {
    service->with([&](Directory& d) {
      std::vector<Evicted> evicted;
      const ItemRequest item{"k", pool, block, false};
      job = store ? *d.prepare_store({ns, 0, kNormalPriority, kAllTiers}, {&item, 1}, evicted)
                  : *d.prepare_load({ns, 0, false, 0}, {&item, 1});
    });
    REQUIRE(service->submit(job));
    REQUIRE(*service->wait(job, 20'000'000'000));
    service->with([&](Directory& d) { CHECK(d.job(job)->succeeded == 1); });
  };
  service->with([&](Directory& d) {
    pool = *d.register_pool(desc);
    ns = *d.open_namespace({"m", "", 0, layout_digest(l), contents_bytes(l), ""});
  });
  run(true, 0);
  run(false, 2);
  // Block 2 now holds block 0's rows; everything else, padding too, is as before.
  std::vector<std::byte> expected = original;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t part = 0; part < 2; ++part) {
      for (std::size_t row = 0; row < 8; ++row) {
        const std::size_t at = layer * l.layer_stride + part * l.v_offset + row * 24;
        std::copy_n(original.begin() + static_cast<std::ptrdiff_t>(at), 16,
                    expected.begin() + static_cast<std::ptrdiff_t>(at + 2 * l.block_stride));
      }
    }
  }
  CHECK(memory == expected);
}

TEST_CASE("the event descriptor is readable while a finished job waits to be reported") {
  RealBytes w(4, 4, 0);
  CHECK_FALSE(readable(w.service->event_fd()));
  const auto job = w.prepare_store({"a"}, 0);
  REQUIRE(w.service->submit(*job));
  REQUIRE(*w.service->wait(*job, 20'000'000'000));
  CHECK(readable(w.service->event_fd()));
  CHECK(w.service->poll() == *job);
  CHECK_FALSE(w.service->poll());
  CHECK_FALSE(readable(w.service->event_fd()));
}

TEST_CASE("waiting has a bound, and a job that nobody submitted is no reason to wait") {
  RealBytes w(4, 4, 0);
  const auto job = w.prepare_store({"a"}, 0);
  CHECK_FALSE(w.service->wait(*job, 1'000'000'000));
  CHECK(w.service->cancel(*job));
  CHECK(*w.service->wait(*job, 0));
  CHECK(w.service->wait(12345, 0).error().code == Code::kStale);
}

TEST_CASE("a runtime that moves bytes does not take a caller's word for them") {
  RealBytes w(4, 4, 0);
  const auto job = w.prepare_store({"a"}, 0);
  CHECK(w.service->complete(*job, std::vector<ItemOutcome>(1)).error().code == Code::kUnsupported);
}

namespace {

constexpr std::int64_t kPatience = 20'000'000'000;

/// Stores a block of contents `value` and loads it eight blocks on; whether it came back.
bool round_trip(RealBytes& w, std::uint32_t block, std::uint32_t value) {
  const std::string key = numbered(value);
  std::vector<ItemRequest> item{{key, w.pool, block, false}};
  w.fill(block, value);
  Result<JobId> job = internal_error("not asked yet");
  while (!job) {  // refused while the lower tier is busy; drain is bounded
    job = w.service->with([&](Directory& d) {
      std::vector<Evicted> evicted;
      return d.prepare_store({w.ns, 0, kNormalPriority, kAllTiers}, item, evicted);
    });
    if (!job) w.service->drain(kPatience);
  }
  if (!w.service->submit(*job) || !*w.service->wait(*job, kPatience)) return false;
  item[0].block = block + 8;
  const auto load = w.service->with([&](Directory& d) {
    return d.prepare_load({w.ns, 0, false, 0}, item);
  });
  return load && w.service->submit(*load) && *w.service->wait(*load, kPatience) &&
         w.holds(block + 8, value);
}

}  // namespace

TEST_CASE("several threads store and load beside each other") {
  RealBytes w(64, 16, 64);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  threads.reserve(3);
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t round = 0; round < 20; ++round) {
        if (!round_trip(w, t * 16 + round % 8, t * 1000 + round)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  w.service->with([](Directory& d) { CHECK(d.catalog().validate()); });
}
