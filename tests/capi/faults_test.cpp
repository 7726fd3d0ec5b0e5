// SPDX-License-Identifier: Apache-2.0
// Fault points set by configuration, as an operations team rehearses failures: in every build.
#include <vector>

#include "tests/capi/capi_world.hpp"

using namespace capi_world;
using Catch::Matchers::Contains;

namespace {

lehr_sequence sequence_of(lehr_runtime runtime, std::uint64_t prompt_tokens) {
  auto desc = sized<lehr_sequence_desc>();
  desc.prompt_tokens = prompt_tokens;
  lehr_sequence out{};
  REQUIRE(lehr_sequence_create(runtime, &desc, 1, &out) == LEHR_OK);
  return out;
}

/// A step that reads the first page of layer 0: with a full HBM, a transfer from home.
lehr_status read_oldest(lehr_runtime runtime, lehr_sequence sequence) {
  const lehr_status begun = lehr_step_begin(runtime, &sequence, 1, nullptr);
  if (begun < 0) return begun;
  const std::uint32_t page = 0;
  auto group = sized<lehr_selection>();
  group.sequence = sequence;
  group.pages = &page;
  group.page_count = 1;
  lehr_status ran = lehr_step_layer(runtime, 0, &group, 1);
  if (ran >= 0) ran = lehr_step_layer(runtime, 1, nullptr, 0);
  return ran < 0 ? ran : lehr_step_end(runtime, nullptr);
}

std::string host_with(const std::string& faults) {
  return "machine = \"host\"\nfaults = \"" + faults +
         "\"\n[geometry]\nlayers = 2\nkv_heads = 1\nhead_dim = 8\n"
         "[capacity]\nhbm = \"4 pages\"\nhost = \"64 pages\"\nnvme = 0\n";
}

}  // namespace

TEST_CASE("a fault in the configuration reaches a step's transfers") {
  Runtime failing(host_with("copy#1=eio"));
  const lehr_sequence sequence = sequence_of(failing, 100);
  const lehr_status failed = read_oldest(failing, sequence);
  CHECK(LEHR_STATUS_CLASS(failed) == LEHR_CLASS_IO);
  CHECK_THAT(last_error(),
             Contains("moving page") && Contains("from host to hbm: the device failed"));
  // The step loop is not to be trusted from then on, and says so instead of going on.
  CHECK(lehr_step_begin(failing, &sequence, 1, nullptr) < 0);
}

TEST_CASE("control: the same steps without the fault, and with a harmless one, are done") {
  const char* faults = GENERATE("", "copy#1=slow:100", "copy#1/1=reorder", "read#1=eio");
  CAPTURE(faults);
  Runtime runtime(host_with(faults));
  const lehr_sequence sequence = sequence_of(runtime, 100);
  for (int i = 0; i < 3; ++i) CHECK(read_oldest(runtime, sequence) == LEHR_OK);
}

TEST_CASE("a fault that cannot happen on the machine is refused, not ignored") {
  lehr_runtime runtime{};
  const lehr_status refused = try_open("faults = \"copy#1=eio\"\n" + std::string(kStep), runtime);
  CHECK(LEHR_STATUS_CLASS(refused) == LEHR_CLASS_INVALID);
  CHECK_THAT(last_error(), Contains("faults") && Contains("host"));
}
