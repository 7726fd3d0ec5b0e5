// SPDX-License-Identifier: Apache-2.0
// How structs of other versions of the header are met.
#include "tests/capi/capi_world.hpp"

using namespace capi_world;

namespace {

// A later version's options: what we know, and one more field.
struct LaterOptions {
  lehr_open_options known;
  std::uint64_t added;
};

}  // namespace

TEST_CASE("a larger struct passes while the fields we do not know are 0, and never else") {
  LaterOptions later;
  std::memset(&later, 0, sizeof(later));
  later.known.struct_size = sizeof(later);
  later.known.config = kStep;
  later.known.config_size = std::strlen(kStep);
  lehr_runtime runtime{};
  REQUIRE(lehr_open(LEHR_VERSION, &later.known, &runtime) == LEHR_OK);
  REQUIRE(lehr_close(runtime) == LEHR_OK);
  later.added = 1;
  CHECK(LEHR_STATUS_CLASS(lehr_open(LEHR_VERSION, &later.known, &runtime)) == LEHR_CLASS_VERSION);
  CHECK_THAT(last_error(), Catch::Matchers::Contains("does not know"));
}

TEST_CASE("a smaller struct than the first released is refused") {
  auto options = sized<lehr_open_options>();
  options.config = kStep;
  options.config_size = std::strlen(kStep);
  lehr_runtime runtime{};
  for (const std::uint32_t size : {0U, 4U, 8U, 24U, 31U, 0xFFFFFFFFU}) {
    options.struct_size = size;
    const lehr_status status = lehr_open(LEHR_VERSION, &options, &runtime);
    CHECK(LEHR_STATUS_CLASS(status) == LEHR_CLASS_INVALID);
    CHECK(LEHR_STATUS_REASON(status) == LEHR_REASON_OUT_OF_RANGE);
  }
}

TEST_CASE("results are written up to struct_size and no further, unknown fields become 0") {
  Runtime runtime(kStep);
  struct {
    lehr_runtime_info info;
    unsigned char tail[16];
    unsigned char beyond[16];
  } out;
  std::memset(&out, 0xAB, sizeof(out));
  out.info.struct_size = sizeof(out.info) + sizeof(out.tail);
  REQUIRE(lehr_runtime_describe(runtime, &out.info) == LEHR_OK);
  CHECK(out.info.layers == 2);
  CHECK(out.info.struct_size == sizeof(out.info) + sizeof(out.tail));
  for (const unsigned char c : out.tail) CHECK(c == 0);
  for (const unsigned char c : out.beyond) CHECK(c == 0xAB);
}

TEST_CASE("arrays of larger elements are walked by their own size") {
  Runtime runtime(kPlacement);
  const lehr_namespace ns = open_namespace(runtime);
  struct Later {
    lehr_lookup_result known;
    std::uint64_t added[2];
  };
  Later results[3];
  std::memset(results, 0xCD, sizeof(results));
  results[0].known.struct_size = sizeof(Later);
  const lehr_bytes keys[3] = {{"a", 1}, {"b", 1}, {"c", 1}};
  REQUIRE(lehr_lookup(runtime, ns, keys, 3, &results[0].known, nullptr) == LEHR_OK);
  for (const Later& r : results) {
    CHECK(r.known.struct_size == sizeof(Later));
    CHECK(r.known.state == LEHR_KEY_MISS);
    CHECK(r.added[1] == 0);
  }
  results[0].known.struct_size = sizeof(lehr_lookup_result) + 4;
  CHECK(LEHR_STATUS_CLASS(lehr_lookup(runtime, ns, keys, 3, &results[0].known, nullptr)) ==
        LEHR_CLASS_INVALID);
}

TEST_CASE("a caller of a newer major version is refused, an older or newer minor is not") {
  auto options = sized<lehr_open_options>();
  options.config = kStep;
  options.config_size = std::strlen(kStep);
  lehr_runtime runtime{};
  CHECK(LEHR_STATUS_CLASS(lehr_open(1'000'000, &options, &runtime)) == LEHR_CLASS_VERSION);
  REQUIRE(lehr_open(LEHR_VERSION + 999, &options, &runtime) == LEHR_OK);
  CHECK(lehr_close(runtime) == LEHR_OK);
}

TEST_CASE("sizes of the first release stay") {
  // What a program that was built with 0.1 sends. A change here breaks it.
  CHECK(sizeof(lehr_open_options) >= 32);
  CHECK(offsetof(lehr_open_options, config_path) == 24);
  CHECK(offsetof(lehr_selection, filled_next_use) == 56);
  CHECK(offsetof(lehr_step_report, link_bytes) == 304);
  CHECK(offsetof(lehr_layout, block_stride) == 40);
  CHECK(offsetof(lehr_item, pool) == 24);
  CHECK(offsetof(lehr_job_report, items) == 32);
  CHECK(offsetof(lehr_event, key) == 40);
}
