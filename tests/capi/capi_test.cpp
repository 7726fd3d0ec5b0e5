// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;
using Catch::Matchers::Contains;

TEST_CASE("a status is a class and a reason, and both have names") {
  const lehr_status status = LEHR_MAKE_STATUS(LEHR_CLASS_REFUSED, LEHR_REASON_NO_EVICTABLE);
  CHECK(status < 0);
  CHECK(LEHR_STATUS_CLASS(status) == LEHR_CLASS_REFUSED);
  CHECK(LEHR_STATUS_REASON(status) == LEHR_REASON_NO_EVICTABLE);
  CHECK(std::string(lehr_status_name(status)) == "refused");
  CHECK(std::string(lehr_reason_name(status)) == "no_evictable");
  CHECK(std::string(lehr_status_name(LEHR_OK)) == "ok");
  CHECK(std::string(lehr_status_name(LEHR_RETRY)) == "retry");
  for (const lehr_status odd : {INT32_MIN, INT32_MAX, -1000000, 77}) {
    CHECK(lehr_status_name(odd) != nullptr);
    CHECK(lehr_reason_name(odd) != nullptr);
  }
}

TEST_CASE("details are each thread's own, and cut to the buffer") {
  lehr_runtime runtime{};
  CHECK(try_open("machine = \"abacus\"", runtime) < 0);
  CHECK_THAT(last_error(), Contains("<config>:1:1: machine: expected one of sim|host|cuda"));
  char small[8];
  CHECK(lehr_last_error(small, sizeof(small)) > sizeof(small));
  CHECK(std::string(small) == "<config");
  std::string other;
  std::thread([&] { other = last_error(); }).join();
  CHECK(other.empty());
}

TEST_CASE("what cannot be opened says what was expected") {
  struct Bad {
    std::string config;
    int cls;
    const char* says;
  };
  const Bad cases[] = {
      {"", LEHR_CLASS_INVALID, "neither level"},
      {"machine = \"cuda\"", LEHR_CLASS_UNSUPPORTED, "cuda"},
      {"profile = \"abacus\"\n" + std::string(kStep), LEHR_CLASS_NOT_FOUND, "h200-pcie5"},
      {"policy.name = \"magic\"\n" + std::string(kStep), LEHR_CLASS_NOT_FOUND, "lru"},
      {"faults = \"sometimes\"\n" + std::string(kPlacement), LEHR_CLASS_INVALID, "faults"},
      {"machine = \"host\"\n[geometry]\nlayers = 1\nkv_heads = 1\nhead_dim = 8\n",
       LEHR_CLASS_INVALID, "capacity.hbm"},
      {"[geometry]\nlayers = 1\nkv_heads = 1\nhead_dim = 8\n[capacity]\nhbm = \"9 TB\"\n",
       LEHR_CLASS_INVALID, "capacity.hbm"},
      {"[placement]\nblock_bytes = 4096\n", LEHR_CLASS_INVALID, "placement.host"},
      {"machine = \"host\"\n[placement]\nblock_bytes = 4096\nhost = \"2 pages\"\nnvme = \"2 "
       "pages\"\n",
       LEHR_CLASS_INVALID, "nvme.path"},
      {"machine = \"host\"\n[placement]\nblock_bytes = 4096\nhost = \"2 pages\"\nnvme = \"2 "
       "pages\"\n[nvme]\npath = \"/nonexistent/dir\"\n",
       0, "/nonexistent/dir"},
  };
  for (const Bad& bad : cases) {
    INFO(bad.config);
    lehr_runtime runtime{};
    const lehr_status status = try_open(bad.config, runtime);
    REQUIRE(status < 0);
    if (bad.cls != 0) CHECK(LEHR_STATUS_CLASS(status) == bad.cls);
    CHECK_THAT(last_error(), Contains(bad.says));
    CHECK(runtime.id == 0);
  }
}

TEST_CASE("two runtimes at once know nothing of each other") {
  Runtime one(kPlacement);
  Runtime two(kPlacement);
  const lehr_namespace ns_one = open_namespace(one);
  const lehr_namespace ns_two = open_namespace(two);
  CHECK(ns_one.id != ns_two.id);
  auto request = sized<lehr_store_request>();
  request.ns = ns_one;
  const lehr_item item = item_of("k");
  lehr_job job{};
  REQUIRE(lehr_store_prepare(one, &request, &item, 1, nullptr, nullptr, 0, nullptr, &job) ==
          LEHR_OK);
  const lehr_status done = LEHR_OK;
  CHECK(LEHR_STATUS_CLASS(lehr_job_complete(two, job, &done, 1)) == LEHR_CLASS_STALE);
  REQUIRE(lehr_job_complete(one, job, &done, 1) == LEHR_OK);
  const lehr_bytes key{"k", 1};
  auto result = sized<lehr_lookup_result>();
  CHECK(LEHR_STATUS_CLASS(lehr_lookup(two, ns_one, &key, 1, &result, nullptr)) == LEHR_CLASS_STALE);
  REQUIRE(lehr_lookup(two, ns_two, &key, 1, &result, nullptr) == LEHR_OK);
  CHECK(result.state == LEHR_KEY_MISS);
  REQUIRE(lehr_lookup(one, ns_one, &key, 1, &result, nullptr) == LEHR_OK);
  CHECK(result.state == LEHR_KEY_HIT);
}

TEST_CASE("handles of a closed runtime stay stale when its place is taken") {
  lehr_runtime first{};
  REQUIRE(try_open(kPlacement, first) == LEHR_OK);
  const lehr_namespace ns = open_namespace(first);
  REQUIRE(lehr_close(first) == LEHR_OK);
  CHECK(LEHR_STATUS_CLASS(lehr_close(first)) == LEHR_CLASS_STALE);
  Runtime second(kPlacement);
  CHECK(first.id != second.handle.id);
  const lehr_bytes key{"k", 1};
  auto result = sized<lehr_lookup_result>();
  CHECK(LEHR_STATUS_CLASS(lehr_lookup(second, ns, &key, 1, &result, nullptr)) == LEHR_CLASS_STALE);
}

TEST_CASE("a runtime may be closed while other threads use it") {
  for (int round = 0; round < 10; ++round) {
    lehr_runtime runtime{};
    REQUIRE(try_open(std::string("machine = \"host\"\n") + kPlacement, runtime) == LEHR_OK);
    const lehr_namespace ns = open_namespace(runtime);
    std::atomic<bool> begun{false};
    std::atomic<int> odd{0};
    std::thread user([&] {
      const lehr_bytes key{"k", 1};
      auto result = sized<lehr_lookup_result>();
      for (;;) {
        const lehr_status status = lehr_lookup(runtime, ns, &key, 1, &result, nullptr);
        begun = true;
        if (status == LEHR_OK || status == LEHR_RETRY) continue;
        if (LEHR_STATUS_CLASS(status) != LEHR_CLASS_STALE) ++odd;
        break;
      }
    });
    while (!begun) std::this_thread::yield();
    REQUIRE(lehr_close(runtime) == LEHR_OK);
    user.join();
    CHECK(odd == 0);
  }
}

TEST_CASE("a batch reports each item, and partial success as such") {
  Runtime runtime(kStep);
  auto desc = sized<lehr_sequence_desc>();
  desc.prompt_tokens = 16;
  lehr_sequence sequences[3] = {};
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &sequences[0]) == LEHR_OK);
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &sequences[2]) == LEHR_OK);
  lehr_status statuses[3];
  CHECK(lehr_sequence_suspend(runtime, sequences, 3, statuses) == LEHR_PARTIAL);
  CHECK(statuses[0] == LEHR_OK);
  CHECK(LEHR_STATUS_CLASS(statuses[1]) == LEHR_CLASS_STALE);
  CHECK(statuses[2] == LEHR_OK);
  CHECK(lehr_sequence_suspend(runtime, sequences, 0, nullptr) == LEHR_OK);
}

TEST_CASE("a selection that cannot be is refused, and the step goes on") {
  Runtime runtime(kStep);
  auto desc = sized<lehr_sequence_desc>();
  desc.prompt_tokens = 40;  // two full pages and a tail
  lehr_sequence sequence{};
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &sequence) == LEHR_OK);
  int stream = 0;
  CHECK(LEHR_STATUS_CLASS(lehr_step_begin(runtime, &sequence, 1, &stream)) ==
        LEHR_CLASS_UNSUPPORTED);
  REQUIRE(lehr_step_begin(runtime, &sequence, 1, nullptr) == LEHR_OK);
  const std::uint32_t pages[] = {0, 1};
  const std::uint8_t mass[3] = {8, 16, 24};
  auto group = sized<lehr_selection>();
  group.sequence = sequence;
  group.pages = pages;
  group.page_count = 2;
  group.mass = mass;
  group.code_count = 3;
  const auto refused = [&](lehr_selection bad) { return lehr_step_layer(runtime, 0, &bad, 1) < 0; };
  auto bad = group;
  bad.kv_head = 1;
  CHECK(refused(bad));
  bad = group;
  bad.code_count = 2;
  CHECK(refused(bad));
  const std::uint32_t past[] = {0, 3};
  bad = group;
  bad.pages = past;
  CHECK(refused(bad));
  const std::uint32_t falling[] = {1, 0};
  bad.pages = falling;
  CHECK(refused(bad));
  bad = group;
  bad.pages = nullptr;
  CHECK(refused(bad));
  CHECK(lehr_step_layer(runtime, 1, &group, 1) < 0);  // layer 0 is next
  REQUIRE(lehr_step_layer(runtime, 0, &group, 1) == LEHR_OK);
  REQUIRE(lehr_step_layer(runtime, 1, nullptr, 0) == LEHR_OK);  // tails only
  auto report = sized<lehr_step_report>();
  REQUIRE(lehr_step_end(runtime, &report) == LEHR_OK);
  CHECK(report.tail_reads == 2);
  CHECK(report.reads == 4);  // two pages and a tail in layer 0, a tail in layer 1
}

TEST_CASE("claims through the interface: whole needs, in turn") {
  Runtime runtime(kPlacement);
  const lehr_pool pool = pool_of(runtime, 7);
  lehr_claim a{};
  lehr_claim b{};
  REQUIRE(lehr_claim_open(runtime, pool, 0, 5, &a) == LEHR_OK);
  REQUIRE(lehr_claim_open(runtime, pool, 0, 4, &b) == LEHR_OK);
  std::int32_t state = -1;
  REQUIRE(lehr_claim_query(runtime, b, &state) == LEHR_OK);
  CHECK(state == LEHR_CLAIM_WAITING);
  CHECK(LEHR_STATUS_REASON(lehr_pool_unregister(runtime, pool)) == LEHR_REASON_LEASED);
  CHECK(LEHR_STATUS_REASON(lehr_claim_open(runtime, pool, 0, 8, &a)) == LEHR_REASON_OVER_BUDGET);
  REQUIRE(lehr_claim_close(runtime, a) == LEHR_OK);
  REQUIRE(lehr_claim_query(runtime, b, &state) == LEHR_OK);
  CHECK(state == LEHR_CLAIM_GRANTED);
  REQUIRE(lehr_claim_close(runtime, b) == LEHR_OK);
  CHECK(lehr_pool_unregister(runtime, pool) == LEHR_OK);
}

TEST_CASE("build information and notes are text") {
  std::size_t needed = 0;
  REQUIRE(lehr_build_info(nullptr, 0, &needed) == LEHR_OK);
  std::string text(needed, '\0');
  REQUIRE(lehr_build_info(text.data(), text.size(), nullptr) == LEHR_OK);
  CHECK_THAT(text, Contains("\"version\":\"0.1.0\""));
  Runtime runtime(kPlacement);
  pool_of(runtime, 100);
  char notes[512];
  REQUIRE(lehr_notes(runtime, notes, sizeof(notes), nullptr) == LEHR_OK);
  CHECK_THAT(notes, Contains("hold 4 blocks") && Contains("100"));
}
