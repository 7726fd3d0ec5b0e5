// SPDX-License-Identifier: Apache-2.0
// What the step loop refuses or cannot do is said by reason, and leaves the state as it was.
#include "tests/runtime/step/tiny_runtime.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

TEST_CASE("less HBM than tails is refused with a reason") {
  auto none = Runtime::create(small(0), std::make_unique<test::ContentMachine>());
  REQUIRE_FALSE(none);
  CHECK(none.error().reason == Reason::kOverBudget);
  const auto r = make(small(1));
  start(*r, 4);
  const SequenceInfo info{4, {}};
  const auto second = r->create_sequences({&info, 1});
  REQUIRE_FALSE(second);
  CHECK(second.error().reason == Reason::kOverBudget);
  CHECK(r->validate());
}

TEST_CASE("a prompt past all page numbers is refused, also where its pages overflow 64 bits") {
  auto options = small(4);
  options.geometry.kv_heads = 2;
  options.geometry.q_heads = 2;
  options.geometry.page_tokens = 1;
  const auto r = make(options);
  for (const auto prompt : std::vector<std::uint64_t>{1ULL << 31, 1ULL << 63, ~0ULL}) {
    const SequenceInfo info{prompt, {}};
    const auto refused = r->create_sequences({&info, 1});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().reason == Reason::kOverBudget);
  }
  CHECK(r->table().live_pages() == 0);
  // The control: what has page numbers and no room is refused for another reason.
  const SequenceInfo info{1U << 20, {}};
  CHECK(r->create_sequences({&info, 1}).error().reason == Reason::kNoSpace);
}

TEST_CASE("a refused layer leaves the state as it was") {
  const auto r = make(small(3));
  const SequenceId s = start(*r, 13);
  REQUIRE(r->begin_step({&s, 1}));
  const auto guards = r->table().guard;
  const auto ticks = r->table().last_tick;
  GroupSelection g;
  g.sequence = s;
  const std::vector<std::uint32_t> past_the_end{0, 4};
  g.pages = past_the_end;
  CHECK_FALSE(r->run_layer(0, {&g, 1}));
  const std::vector<std::uint32_t> unordered{2, 1};
  g.pages = unordered;
  CHECK_FALSE(r->run_layer(0, {&g, 1}));
  CHECK_FALSE(r->run_layer(1, {&g, 1}));
  g.kv_head = 1;
  g.pages = {};
  CHECK_FALSE(r->run_layer(0, {&g, 1}));
  CHECK(r->table().guard == guards);
  CHECK(r->table().last_tick == ticks);
  g.kv_head = 0;
  CHECK(r->run_layer(0, {&g, 1}));
  CHECK(r->end_step());
}

TEST_CASE("a layer past the last is refused, and the step can end") {
  const auto r = make(small(3));
  const SequenceId s = start(*r, 13);
  REQUIRE(r->begin_step({&s, 1}));
  REQUIRE(r->run_layer(0, {}));
  const auto ticks = r->table().last_tick;
  GroupSelection g;
  g.sequence = s;
  for (const std::uint32_t layer : {1U, 2U, 0U}) {
    CHECK(r->run_layer(layer, {&g, 1}).error().code == Code::kInvalid);
    CHECK(r->run_layer(layer, {}).error().code == Code::kInvalid);
  }
  CHECK(r->table().last_tick == ticks);
  CHECK(r->end_step());
  CHECK(step(*r, s, {0, 1}).reads == 3);
}

TEST_CASE("an abandoned step never was, wherever in a page its token would have been") {
  for (const char* policy : {"lru", "table", "none"}) {
    for (std::uint64_t prompt = 0; prompt < 10; ++prompt) {
      for (const bool ran : {false, true}) {
        CAPTURE(policy, prompt, ran);
        const auto r = make(small(4, policy));
        const SequenceId s = start(*r, prompt);
        for (int times = 0; times < 5; ++times) {
          REQUIRE(r->begin_step({&s, 1}));
          if (ran) REQUIRE(r->run_layer(0, {}));
          r->abandon_step();
          CHECK(*r->tokens(s) == prompt);
          CHECK(r->validate());
        }
        std::vector<std::uint32_t> full;
        for (std::uint32_t page = 0; page < 5; ++page) {
          while (*r->tokens(s) < 4U * (page + 1)) step(*r, s, full);  // the machine checks contents
          full.push_back(page);
        }
        REQUIRE(r->release(s));
        CHECK(r->table().live_pages() == 0);
      }
    }
  }
}

TEST_CASE("a full disk below holds write-backs, and loses nothing") {
  auto options = small(3);
  options.platform = test::tiny_platform(true);
  options.tier_pages = {3, 1, 0};
  const auto r = make(options);
  const SequenceId s = start(*r, 6);  // one full page at home
  StepReport report = step(*r, s, {0});
  report = step(*r, s, {0});  // page 1 is full: home is full, nothing below
  CHECK(report.written_back == 0);
  CHECK(report.busy_write_backs == 1);
  report = step(*r, s, {0, 1});
  CHECK(report.busy_write_backs == 1);  // tried again
  CHECK(report.misses == 0);            // and still readable where it is
}

TEST_CASE("a group that is named twice in a layer is refused, and the step can go on") {
  const auto r = make(small(8));
  const SequenceId s = start(*r, 13);
  REQUIRE(r->begin_step({&s, 1}));
  const std::vector<std::uint32_t> pages{0, 1};
  GroupSelection g;
  g.sequence = s;
  g.pages = pages;
  const GroupSelection twice[] = {g, g};
  const Status refused = r->run_layer(0, twice);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kInvalid);
  CHECK(refused.error().what.find("named twice") != std::string::npos);
  REQUIRE(r->run_layer(0, {&g, 1}));  // the control: once is right
  const auto report = r->end_step();
  REQUIRE(report);
  CHECK(report->reads == 3);  // two pages and the tail
  CHECK(r->validate());
}

namespace {

/// Fails its next set-ups, `failing` of them, halfway.
class FailingMachine final : public Machine {
 public:
  explicit FailingMachine(int failing) : failing_(failing) {}
  MachineTraits traits() const override { return inner_.traits(); }
  Status set_up(std::span<const PageOp> ops) override {
    if (failing_-- <= 0) return inner_.set_up(ops);
    LEHR_TRY(inner_.set_up(ops.first(ops.size() / 2)));
    return Error{Code::kIo, Reason::kNone, "the disk is gone"};
  }
  Status run_layer(Step step, std::uint32_t layer, std::span<const PageOp> ops) override {
    return inner_.run_layer(step, layer, ops);
  }
  Status drain() override { return {}; }
  Seconds take_measured() override { return 0; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  test::ContentMachine inner_;
  int failing_;
};

}  // namespace

TEST_CASE("sequences that the machine cannot set up leave nothing behind") {
  auto options = small(3);
  options.tier_pages = {3, 6};  // twice the prompts below would not fit
  auto made = Runtime::create(options, std::make_unique<FailingMachine>(1));
  REQUIRE(made);
  Runtime& r = **made;
  const std::vector<SequenceInfo> two{{13, {}}, {12, {}}};
  const auto failed = r.create_sequences(two);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Code::kIo);
  CHECK(r.table().slots(kHbm).used() == 0);
  CHECK(r.table().slots(1).used() == 0);
  CHECK(r.table().live_pages() == 0);
  CHECK_FALSE(r.tokens(0));
  CHECK(r.validate());
  const auto ids = r.create_sequences(two);  // the machine is well again
  REQUIRE(ids);
  CHECK(r.table().slots(1).used() == 6);
  CHECK(step(r, ids->front(), {0, 1, 2}).reads == 4);
}

TEST_CASE("a layer that reads more than the home tier holds beside it is refused by reason") {
  // Three full pages, none of which HBM has room for; the oldest lies on NVMe where home holds two.
  for (const std::uint32_t home : {2U, 3U}) {
    auto options = small(1);
    options.platform = test::tiny_platform(true);
    options.tier_pages = {1, home, 10};
    const auto r = make(options);
    const SequenceId s = start(*r, 13);
    REQUIRE(r->begin_step({&s, 1}));
    const std::vector<std::uint32_t> all{0, 1, 2};
    const std::vector<std::uint32_t> oldest{0};
    GroupSelection g;
    g.sequence = s;
    g.pages = all;
    const Status ran = r->run_layer(0, {&g, 1});
    CHECK(ran.has_value() == (home == 3));
    if (!ran) {
      CHECK(ran.error().code == Code::kRefused);
      CHECK(ran.error().reason == Reason::kNoEvictable);
      CHECK(r->validate());
      g.pages = oldest;
      CHECK(r->run_layer(0, {&g, 1}));  // one of the two at home makes way
    }
    CHECK(r->end_step());
    CHECK(r->validate());
  }
}
