// SPDX-License-Identifier: Apache-2.0
// Every function of the interface against calls that were made to break it.
#include <fstream>
#include <set>
#include <sstream>

#include "tests/capi/hostile_calls.hpp"

using namespace hostile;

namespace {

std::string both() { return std::string(kStep) + kPlacement; }

Handles make(lehr_runtime runtime) {
  Handles h{};
  h.runtime = runtime;
  auto desc = sized<lehr_sequence_desc>();
  desc.prompt_tokens = 20;
  lehr_sequence sequence{};
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &sequence) == LEHR_OK);
  h.sequence = sequence.id;
  const lehr_namespace ns = open_namespace(runtime);
  h.ns = ns.id;
  const lehr_pool pool = pool_of(runtime, 2);
  h.pool = pool.id;
  auto request = sized<lehr_store_request>();
  request.ns = ns;
  lehr_item item = item_of("there", pool);
  lehr_job job{};
  REQUIRE(lehr_store_prepare(runtime, &request, &item, 1, nullptr, nullptr, 0, nullptr, &job) ==
          LEHR_OK);
  const lehr_status done = LEHR_OK;
  REQUIRE(lehr_job_complete(runtime, job, &done, 1) == LEHR_OK);
  h.job = job.id;
  lehr_lease lease{};
  const lehr_bytes key{"there", 5};
  REQUIRE(lehr_lease_acquire(runtime, ns, &key, 1, &lease) == LEHR_OK);
  h.lease = lease.id;
  lehr_claim claim{};
  REQUIRE(lehr_claim_open(runtime, pool, 0, 1, &claim) == LEHR_OK);
  h.claim = claim.id;
  auto table_desc = sized<lehr_table_desc>();
  table_desc.pool = pool;
  table_desc.rows = 2;
  table_desc.columns = 3;
  lehr_table table{};
  void* entries = nullptr;
  REQUIRE(lehr_table_open(runtime, &table_desc, &table, &entries) == LEHR_OK);
  h.table = table.id;
  auto desc_of_trace = sized<lehr_trace_desc>();
  traces().describe(desc_of_trace);
  lehr_trace trace{};
  REQUIRE(lehr_trace_open(&desc_of_trace, &trace) == LEHR_OK);
  traces().keep(trace);
  h.trace = trace.id;
  h.group = groups().open();
  lehr_sequence member{};
  REQUIRE(lehr_group_sequence_create({h.group}, nullptr, 1, &member) == LEHR_OK);
  h.member = member.id;
  return h;
}

std::uint64_t& handle_of(Handles& h, const std::string& kind) {
  if (kind == "sequence") return h.sequence;
  if (kind == "ns") return h.ns;
  if (kind == "pool") return h.pool;
  if (kind == "job") return h.job;
  if (kind == "trace") return h.trace;
  if (kind == "table") return h.table;
  if (kind == "group") return h.group;
  if (kind == "member") return h.member;
  return kind == "lease" ? h.lease : h.claim;
}

}  // namespace

TEST_CASE("the hostile table names every function of the header") {
  std::ifstream in(LEHR_HEADER_PATH);
  std::stringstream text;
  text << in.rdbuf();
  const std::string header = text.str();
  // Those that take neither handle nor struct nor pointer to fail on.
  std::set<std::string> known = {"lehr_version", "lehr_status_name", "lehr_reason_name",
                                 "lehr_last_error"};
  for (const auto& [name, row] : rows()) known.insert(name);
  std::set<std::string> declared;
  for (std::size_t at = 0; (at = header.find("\nLEHR_API ", at)) != std::string::npos; ++at) {
    const std::size_t end = header.find('(', at);
    REQUIRE(end != std::string::npos);
    const std::size_t start = header.find_last_of(" *", end) + 1;
    declared.insert(header.substr(start, end - start));
  }
  CHECK(declared.size() > 40);
  CHECK(declared == known);
}

TEST_CASE("null, stale, foreign and invented runtimes are refused by every function") {
  Runtime live(both());
  Runtime other(both());
  const Handles good = make(live);
  lehr_runtime closed{};
  REQUIRE(try_open(both(), closed) == LEHR_OK);
  lehr_close(closed);
  const std::uint64_t bad[] = {0,
                               closed.id,
                               good.sequence,
                               good.job,
                               ~std::uint64_t{0},
                               1,
                               live.handle.id ^ (std::uint64_t{1} << 24),
                               live.handle.id | 0xFFFFFF};
  for (const auto& [name, row] : rows()) {
    if (!row.takes_runtime) continue;
    for (const std::uint64_t id : bad) {
      INFO(name << " with runtime " << std::hex << id);
      Caller c{good, false, 0};
      c.h.runtime = {id};
      CHECK(LEHR_STATUS_CLASS(row.call(c)) == LEHR_CLASS_STALE);
    }
  }
}

TEST_CASE("null, stale, foreign and wrong-kind handles are refused by every function") {
  groups().close();
  Runtime live(both());
  Runtime other(both());
  const Handles good = make(live);
  const Handles foreign = make(other);
  for (const auto& [name, row] : rows()) {
    if (row.handle.empty()) continue;
    Handles mine = good;
    Handles theirs = foreign;
    const std::uint64_t right = handle_of(mine, row.handle);
    const std::uint64_t wrong_kind = row.handle == "job" ? good.pool : good.job;
    const std::uint64_t bad[] = {
        0,         handle_of(theirs, row.handle),    wrong_kind, live.handle.id, ~std::uint64_t{0},
        right + 7, right ^ (std::uint64_t{1} << 24), 5};
    for (const std::uint64_t id : bad) {
      if (row.handle == "group" && id == theirs.group) continue;  // they are of no runtime
      INFO(name << " with " << row.handle << " " << std::hex << id);
      Caller c{good, false, 0};
      handle_of(c.h, row.handle) = id;
      if (name == "lehr_step_layer") {
        lehr_sequence s{good.sequence};
        REQUIRE(lehr_step_begin(live, &s, 1, nullptr) == LEHR_OK);
      }
      CHECK(LEHR_STATUS_CLASS(row.call(c)) == LEHR_CLASS_STALE);
      if (name == "lehr_step_layer") REQUIRE(lehr_step_abandon(live) == LEHR_OK);
    }
  }
}

TEST_CASE("NULL pointers and wrong struct sizes are refused by every function that takes them") {
  Runtime live(both());
  const Handles good = make(live);
  for (const auto& [name, row] : rows()) {
    INFO(name);
    if (row.needs_pointers) {
      CHECK(LEHR_STATUS_CLASS(row.call({good, true, 0})) == LEHR_CLASS_INVALID);
    }
    if (!row.takes_structs) continue;
    for (const std::uint32_t size : {1U, 4U, 8U, 0xFFFFU, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      if (size == 0xFFFFU) continue;  // plausible, but larger than what this test provides
      INFO("struct_size " << size);
      CHECK(LEHR_STATUS_CLASS(row.call({good, false, size})) == LEHR_CLASS_INVALID);
    }
  }
}

TEST_CASE("the control: with right arguments no call is refused for its handles or structs") {
  for (const auto& [name, row] : rows()) {
    INFO(name);
    lehr_runtime runtime{};
    REQUIRE(try_open(both(), runtime) == LEHR_OK);
    const lehr_status status = row.call({make(runtime), false, 0});
    CHECK(LEHR_STATUS_CLASS(status) != LEHR_CLASS_STALE);
    CHECK(LEHR_STATUS_CLASS(status) != LEHR_CLASS_INTERNAL);
    lehr_close(runtime);
  }
}

TEST_CASE("a level that was not configured is unsupported, not a crash") {
  Runtime step_only(kStep);
  Runtime placement_only(kPlacement);
  lehr_bytes key{"k", 1};
  auto result = sized<lehr_lookup_result>();
  CHECK(LEHR_STATUS_CLASS(lehr_lookup(step_only, {1}, &key, 1, &result, nullptr)) ==
        LEHR_CLASS_UNSUPPORTED);
  CHECK(LEHR_STATUS_CLASS(lehr_step_abandon(placement_only)) == LEHR_CLASS_UNSUPPORTED);
}

TEST_CASE("layouts and pools that lie are refused before anything is touched") {
  Runtime runtime(kPlacement);
  auto layout = sized<lehr_layout>();
  auto desc = sized<lehr_pool_desc>();
  desc.layout = &layout;
  lehr_pool pool{};
  const auto refused = [&] {
    return LEHR_STATUS_CLASS(lehr_pool_register(runtime, &desc, &pool)) == LEHR_CLASS_INVALID;
  };
  desc.blocks = 4;
  desc.bytes = 4 * 4096;
  CHECK(refused());  // an empty layout
  layout.opaque_bytes = 4096;
  desc.bytes = 4 * 4096 - 1;
  CHECK(refused());
  desc.bytes = ~std::uint64_t{0};
  desc.blocks = 0;
  CHECK(refused());
  layout.opaque_bytes = ~std::uint64_t{0};
  desc.blocks = 1;
  CHECK(refused());
  layout.opaque_bytes = 0;
  layout.layers = layout.kv_heads = layout.tokens = layout.head_dim = 0xFFFFFFFFU;
  layout.element_bytes = 2;
  CHECK(refused());
  desc.memory = 1;
  CHECK(LEHR_STATUS_CLASS(lehr_pool_register(runtime, &desc, &pool)) == LEHR_CLASS_UNSUPPORTED);
}
