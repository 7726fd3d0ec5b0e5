// SPDX-License-Identifier: Apache-2.0
// Capacity of exactly what a step needs, one page fewer, and contexts and pages that end on a
// boundary: each completes with its contents right, or is refused with a reason and changes
// nothing.
#include <catch2/catch.hpp>

#include "runtime/machines/host.hpp"
#include "runtime/runtime.hpp"
#include "tests/support/content_machine.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::runtime;

namespace {

constexpr std::uint32_t kLayers = 2, kHeads = 2, kTokens = 4;

RuntimeOptions options_for(std::uint32_t hbm, std::uint32_t home, const char* policy = "lru") {
  RuntimeOptions o;
  o.platform = test::tiny_platform();
  o.geometry = {.layers = kLayers,
                .kv_heads = kHeads,
                .q_heads = kHeads,
                .head_dim = 1,
                .page_tokens = kTokens,
                .element_bytes = 1};
  o.tier_pages = {hbm, home};
  o.policy = policy;
  return o;
}

struct World {
  std::unique_ptr<Runtime> runtime;
  SequenceId sequence = 0;

  World(const RuntimeOptions& options, std::unique_ptr<Machine> machine, std::uint64_t prompt) {
    auto made = Runtime::create(options, std::move(machine));
    REQUIRE(made);
    runtime = *std::move(made);
    const SequenceInfo info{prompt, {}};
    const auto ids = runtime->create_sequences({&info, 1});
    REQUIRE(ids);
    sequence = ids->front();
  }
  World(const RuntimeOptions& options, std::uint64_t prompt)
      : World(options, std::make_unique<test::ContentMachine>(), prompt) {}

  /// A step that reads every page.
  StepReport step() {
    REQUIRE(runtime->begin_step({&sequence, 1}));
    const auto pages =
        static_cast<std::uint32_t>((*runtime->tokens(sequence) + kTokens - 1) / kTokens);
    std::vector<std::uint32_t> all(pages);
    for (std::uint32_t p = 0; p < pages; ++p) all[p] = p;
    std::vector<GroupSelection> groups(kHeads);
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      groups[head].sequence = sequence;
      groups[head].kv_head = head;
      groups[head].pages = all;
    }
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const Status ran = runtime->run_layer(layer, groups);
      INFO((ran ? std::string() : ran.error().what));
      REQUIRE(ran);
    }
    auto report = runtime->end_step();
    REQUIRE(report);
    REQUIRE(runtime->validate());
    return *report;
  }
};

}  // namespace

TEST_CASE("HBM of exactly a step's pages reads none from elsewhere, one fewer does, and ends") {
  const char* policy = GENERATE("lru", "lfu", "s3-fifo", "table");
  CAPTURE(policy);
  // 13 tokens: three full pages and a tail for each of the four groups, until the 16th token.
  const std::uint32_t working_set = 4 * kLayers * kHeads;
  World exact(options_for(working_set, 64, policy), 13);
  World short_of_one(options_for(working_set - 1, 64, policy), 13);
  for (int i = 0; i < 3; ++i) {
    const StepReport fits = exact.step();
    CHECK(fits.misses == 0);
    CHECK(fits.reads == working_set);
    CHECK(fits.dropped == 0);
    const StepReport lacks = short_of_one.step();  // contents are checked by the machine
    CHECK(lacks.misses + lacks.promoted >= 1);
    CHECK(lacks.reads == working_set);
  }
  CHECK(exact.runtime->table().slots(kHbm).used() == working_set);
  // The 17th token opens a fifth page in each group: what fitted does no longer, and goes on. Pages
  // of layer 0 are no victims while it runs, so its tails take the places of pages of layer 1.
  CHECK(exact.step().misses >= kHeads);
}

TEST_CASE("home of exactly a sequence's full pages takes them, one fewer refuses the sequence") {
  const std::uint32_t full = 3 * kLayers * kHeads;
  World exact(options_for(8, full), 13);
  CHECK(exact.runtime->table().slots(1).used() == full);
  CHECK(exact.step().reads == full + kLayers * kHeads);

  auto made = Runtime::create(options_for(8, full - 1), std::make_unique<test::ContentMachine>());
  REQUIRE(made);
  Runtime& lacking = **made;
  const SequenceInfo info{13, {}};
  const auto refused = lacking.create_sequences({&info, 1});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kNoSpace);
  CHECK(lacking.table().live_pages() == 0);
  for (TierId t = 0; t < 2; ++t) CHECK(lacking.table().slots(t).used() == 0);
  CHECK(lacking.validate());
}

TEST_CASE("a context that ends on a page, and one token more") {
  const auto prompt = GENERATE(as<std::uint64_t>{}, 0, 1, 3, 4, 5, 12, 13);
  CAPTURE(prompt);
  World w(options_for(64, 64), prompt);
  const std::uint32_t groups = kLayers * kHeads;
  for (std::uint64_t tokens = prompt + 1; tokens < prompt + 10; ++tokens) {
    const StepReport report = w.step();
    CHECK(*w.runtime->tokens(w.sequence) == tokens);
    CHECK(report.reads == groups * ((tokens + kTokens - 1) / kTokens));
    CHECK(report.misses == 0);
    // A page goes home in the step that fills it, and in no other.
    CHECK(report.written_back == (tokens % kTokens == 0 ? groups : 0));
  }
  CHECK(w.runtime->table().slots(1).used() == groups * ((prompt + 9) / kTokens));
}

TEST_CASE("real bytes in pages that no extent or block is a multiple of") {
  const Bytes page_bytes = GENERATE(1, 4095, 4096, 4097, 12'000, 300'000);
  CAPTURE(page_bytes);
  RuntimeOptions options = options_for(0, 0);
  options.platform = test::tiny_platform(true);
  options.tier_pages = {8, 6, 32};  // most full pages live in the file
  options.page_bytes = page_bytes;
  HostMachineOptions host;
  host.platform = options.platform;
  host.tier_pages = options.tier_pages;
  host.page_bytes = page_bytes;
  auto machine = make_host_machine(host);
  INFO((machine ? std::string() : machine.error().what));
  REQUIRE(machine);
  World w(options, *std::move(machine), 13);
  CHECK(w.runtime->table().slots(2).used() > 0);
  for (int i = 0; i < 6; ++i) w.step();  // every read is compared with what the page must hold
}
