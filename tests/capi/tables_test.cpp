// SPDX-License-Identifier: Apache-2.0
// Tables of blocks, and what a machine without a device says of streams, events and its memory.
#include "tests/capi/capi_world.hpp"

using namespace capi_world;
using Catch::Matchers::Contains;

namespace {

const std::string kHost = std::string("machine = \"host\"\n") + kPlacement;

/// A runtime on host with a pool of eight blocks.
struct OnHost {
  OnHost() : runtime(kHost), memory(8 * 4096), ns(open_namespace(runtime)) {
    layout = opaque(4096);
    auto desc = sized<lehr_pool_desc>();
    desc.layout = &layout;
    desc.base = memory.data();
    desc.bytes = memory.size();
    desc.blocks = 8;
    REQUIRE(lehr_pool_register(runtime, &desc, &pool) == LEHR_OK);
  }
  lehr_job prepare(const lehr_item& item, bool load) {
    lehr_job job{};
    if (load) {
      auto request = sized<lehr_load_request>();
      request.ns = ns;
      request.flags = LEHR_LOAD_LAYERED;  // one layer: all the same
      REQUIRE(lehr_load_prepare(runtime, &request, &item, 1, nullptr, &job) == LEHR_OK);
    } else {
      auto request = sized<lehr_store_request>();
      request.ns = ns;
      REQUIRE(lehr_store_prepare(runtime, &request, &item, 1, nullptr, nullptr, 0, nullptr, &job) ==
              LEHR_OK);
    }
    return job;
  }
  void run(lehr_job job) {
    REQUIRE(lehr_jobs_submit(runtime, &job, 1, nullptr, nullptr) == LEHR_OK);
    REQUIRE(lehr_job_wait(runtime, job, 20'000'000'000) == LEHR_OK);
  }

  Runtime runtime;
  std::vector<unsigned char> memory;
  lehr_layout layout{};
  lehr_namespace ns{};
  lehr_pool pool{};
};

}  // namespace

TEST_CASE("a machine without a device takes no streams and events, and has no memory of one") {
  OnHost w;
  int anything = 0;
  auto desc = sized<lehr_pool_desc>();
  desc.memory = LEHR_MEMORY_DEVICE;
  desc.layout = &w.layout;
  desc.base = w.memory.data();
  desc.bytes = w.memory.size();
  desc.blocks = 1;
  lehr_pool pool{};
  CHECK(LEHR_STATUS_CLASS(lehr_pool_register(w.runtime, &desc, &pool)) == LEHR_CLASS_UNSUPPORTED);
  CHECK_THAT(last_error(), Contains("has no device"));
  const lehr_job job = w.prepare(item_of("k", w.pool, 0), false);
  CHECK(LEHR_STATUS_CLASS(lehr_jobs_submit(w.runtime, &job, 1, &anything, nullptr)) ==
        LEHR_CLASS_UNSUPPORTED);
  auto after = sized<lehr_order>();
  void* const events[] = {&anything};
  after.events = events;
  after.event_count = 1;
  CHECK(LEHR_STATUS_CLASS(lehr_jobs_submit_after(w.runtime, &job, 1, &after, nullptr)) ==
        LEHR_CLASS_UNSUPPORTED);
  after.event_count = 65;
  CHECK(LEHR_STATUS_REASON(lehr_jobs_submit_after(w.runtime, &job, 1, &after, nullptr)) ==
        LEHR_REASON_OUT_OF_RANGE);
  after.event_count = 0;
  after.flags = 2;
  CHECK(LEHR_STATUS_CLASS(lehr_jobs_submit_after(w.runtime, &job, 1, &after, nullptr)) ==
        LEHR_CLASS_INVALID);
  CHECK(LEHR_STATUS_CLASS(lehr_job_wait_layer(w.runtime, job, 0, nullptr)) == LEHR_CLASS_INVALID);
  after.flags = 0;
  REQUIRE(lehr_jobs_submit_after(w.runtime, &job, 1, &after, nullptr) == LEHR_OK);
  CHECK(lehr_job_wait_layer(w.runtime, job, 0, nullptr) >= 0);
  REQUIRE(lehr_job_wait(w.runtime, job, 20'000'000'000) == LEHR_OK);
  CHECK(lehr_job_wait_layer(w.runtime, job, 0, nullptr) == LEHR_OK);
  CHECK(LEHR_STATUS_REASON(lehr_job_wait_layer(w.runtime, job, 1, nullptr)) ==
        LEHR_REASON_OUT_OF_RANGE);
  void* event = nullptr;
  CHECK(LEHR_STATUS_CLASS(lehr_job_event(w.runtime, job, &event)) == LEHR_CLASS_UNSUPPORTED);
}

TEST_CASE("tables of blocks in host memory, by number and by address") {
  OnHost w;
  auto desc = sized<lehr_table_desc>();
  desc.pool = w.pool;
  desc.rows = 2;
  desc.columns = 3;
  lehr_table numbers{}, addresses{};
  void *first = nullptr, *second = nullptr;
  REQUIRE(lehr_table_open(w.runtime, &desc, &numbers, &first) == LEHR_OK);
  desc.form = LEHR_TABLE_POINTER;
  REQUIRE(lehr_table_open(w.runtime, &desc, &addresses, &second) == LEHR_OK);
  const auto* const number = static_cast<const std::int32_t*>(first);
  const auto* const address = static_cast<const std::uint64_t*>(second);
  CHECK(number[5] == -1);
  CHECK(address[5] == 0);
  desc.form = 2;
  lehr_table none{};
  void* nowhere = nullptr;
  CHECK(LEHR_STATUS_CLASS(lehr_table_open(w.runtime, &desc, &none, &nowhere)) ==
        LEHR_CLASS_INVALID);
  desc.form = LEHR_TABLE_INDEX;
  desc.rows = desc.columns = 0x10000;
  CHECK(LEHR_STATUS_REASON(lehr_table_open(w.runtime, &desc, &none, &nowhere)) ==
        LEHR_REASON_OUT_OF_RANGE);

  w.memory[4096] = 42;
  w.run(w.prepare(item_of("k", w.pool, 1), false));
  lehr_item item = item_of("k", w.pool, 6);
  item.table = numbers;
  item.row = 1;
  item.column = 2;
  w.run(w.prepare(item, true));
  CHECK(number[5] == 6);
  CHECK(w.memory[6 * 4096] == 42);
  item.table = addresses;
  item.block = 7;
  w.run(w.prepare(item, true));
  CHECK(address[5] == reinterpret_cast<std::uint64_t>(&w.memory[7 * 4096]));
  auto entry = sized<lehr_table_entry>();
  entry.row = 1;
  entry.column = 2;
  entry.block = LEHR_NO_BLOCK;
  REQUIRE(lehr_table_write(w.runtime, numbers, &entry, 1, nullptr) == LEHR_OK);
  CHECK(number[5] == -1);
  entry.column = 3;
  CHECK(LEHR_STATUS_REASON(lehr_table_write(w.runtime, numbers, &entry, 1, nullptr)) ==
        LEHR_REASON_OUT_OF_RANGE);
  CHECK(LEHR_STATUS_REASON(lehr_pool_unregister(w.runtime, w.pool)) == LEHR_REASON_LEASED);
  CHECK(lehr_table_close(w.runtime, numbers) == LEHR_OK);
  CHECK(lehr_table_close(w.runtime, addresses) == LEHR_OK);
  CHECK(lehr_pool_unregister(w.runtime, w.pool) == LEHR_OK);
}
