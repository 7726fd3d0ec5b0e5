// SPDX-License-Identifier: Apache-2.0
// A tier below the home tier: pages come up from a file and go down to one while launches that read
// or write their places in host memory have not run yet. Each rule has a control that breaks it.
#include <catch2/catch.hpp>

#include "tests/runtime/cuda/decode_world.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

namespace {

struct Sizes {
  std::uint32_t hbm = 60, host = 120, nvme = 4000, spare = 96;
};

World make_world(const std::string& policy, BelowOptions below, Sizes sizes = {},
                 std::size_t late = 2) {
  WorldOptions o;
  o.policy = policy;
  o.tier_pages = {sizes.hbm, sizes.host, sizes.nvme};
  o.below = std::move(below);
  o.below.spare_pages = sizes.spare;
  o.late = late;
  return test::make_world(o);
}

Status random_steps(World& w, Rng& rng, int steps) {
  for (int t = 0; t < steps; ++t) LEHR_TRY(random_step(w, rng));
  return {};
}

std::uint64_t staged(const World& w) {
  std::uint64_t n = 0;
  for (const auto& s : w.log->steps) n += s.below.staged;
  return n;
}

/// Everything that slots hold is what was put there, in three tiers.
void check_all(World& w) {
  must(w.machine->check());
  CHECK(w.log->pages_bad == 0);
  CHECK(w.log->reads_bad == 0);
}

}  // namespace

TEST_CASE("pages move between HBM, host memory and a file, and each read meets the right ones") {
  const std::string policy =
      GENERATE(as<std::string>{}, "lru", "lru-promote", "lfu-importance", "sa", "none", "static");
  const std::size_t late = GENERATE(std::size_t{0}, std::size_t{2});
  CAPTURE(policy, late);
  World w = make_world(policy, {}, {}, late);
  Rng rng(11);
  create(w, 600);
  create(w, 300);
  must(random_steps(w, rng, 24));
  must(w.runtime->append(w.live[0], 100));  // a prompt chunk: pages sink for it
  const auto child = w.runtime->fork(w.live[0]);
  REQUIRE(child);
  w.live.push_back(*child);
  must(random_steps(w, rng, 12));
  must(w.runtime->suspend(w.live[1]));
  std::swap(w.live[1], w.live[2]);
  const SequenceId asleep = w.live.back();
  w.live.pop_back();
  must(random_steps(w, rng, 12));
  must(w.runtime->resume(asleep));
  w.live.push_back(asleep);
  must(random_steps(w, rng, 12));
  check_all(w);
  CHECK(staged(w) > 100);
  CHECK(w.device->reads > 1000);
  CHECK(w.log->pages_checked > 300);
  CHECK(w.device->empty_at_start == 0);
  CHECK(w.log->steps.size() == 60);
}

TEST_CASE("boxes are computed of pages that lie in the file alone, however few places are spare") {
  World w = make_world("lru", {}, {60, 120, 4000, 24});
  create(w, 800);  // 50 blocks a group of 6: 300 pages, 120 of them in host memory
  Rng rng(3);
  must(random_step(w, rng, {8}));
  CHECK(w.device->unknown_at_start(0, 50) == 0);
  CHECK(w.device->empty_at_start == 0);
  CHECK(w.device->rows_started > 180 / 24);
}

TEST_CASE("a place is given away while a launch still reads it: found out") {
  BelowOptions broken;
  broken.reuse_at_once = true;
  World w = make_world("lru", broken, {60, 120, 4000, 96});
  create(w, 800);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 30);
  const Status good = w.machine->check();
  CHECK_FALSE((ran && good));
}

TEST_CASE("a launch that does not wait for its pages is found out") {
  BelowOptions broken;
  broken.reads_late = true;
  World w = make_world("lru", broken, {}, 0);
  create(w, 800);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 10);
  const Status good = w.machine->check();
  CHECK_FALSE((ran && good));
}

TEST_CASE("a page that is written before the launch that makes it has ended is found out") {
  BelowOptions broken;
  broken.writes_early = true;
  // Host memory so small that what is written back sinks at once.
  World w = make_world("lru", broken, {60, 70, 4000, 96});
  create(w, 300);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 60);
  const Status good = w.machine->check();
  CHECK_FALSE((ran && good));
}

TEST_CASE("with the rules kept, the same lives pass") {
  const Sizes sizes = GENERATE(Sizes{60, 120, 4000, 96}, Sizes{60, 70, 4000, 96});
  const std::size_t late = GENERATE(std::size_t{0}, std::size_t{2});
  World w = make_world("lru", {}, sizes, late);
  create(w, sizes.host == 120 ? 800 : 300);
  Rng rng(11);
  must(random_steps(w, rng, 60));
  check_all(w);
}

TEST_CASE("a step that brings up more than there are spare places is launched in parts") {
  const auto run = [](std::uint32_t spare) {
    World w = make_world("lru", {}, {60, 150, 4000, spare});
    create(w, 1200);
    Rng rng(11);
    must(random_steps(w, rng, 20));
    check_all(w);
    return w;
  };
  const World few = run(70), many = run(2000);
  const auto cut = [](const World& w) {
    return std::count_if(w.log->steps.begin(), w.log->steps.end(),
                         [](const auto& s) { return s.parts > 1; });
  };
  CHECK(cut(few) > 5);
  CHECK(cut(many) == 0);
  CHECK(few.device->reads == many.device->reads);
  CHECK(few.device->installs == many.device->installs);
  CHECK(staged(few) == staged(many));
  for (const auto& s : few.log->steps) {
    REQUIRE(s.times.layers.size() == kLayers + 1);
    // A launch takes 1 ms here, and the device waits 0.1 ms before the next.
    CHECK(s.times.total == Approx(1e-3 * s.parts + 1e-4 * (s.parts - 1)));
    for (std::uint32_t l = 0; l < kLayers; ++l)
      CHECK(s.times.layers[l].begin < s.times.layers[l + 1].begin);
  }
}

TEST_CASE("a layer that brings up more than there are spare places is refused with a reason") {
  World w = make_world("lru", {}, {60, 150, 4000, 8});
  create(w, 1200);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 20);
  REQUIRE_FALSE(ran);
  CHECK(ran.error().reason == Reason::kOverBudget);
  CHECK(w.log->reads_bad == 0);
  check_all(w);
}

TEST_CASE("a read of the file that fails ends the step with a reason, and all pages are there") {
  // Where the bytes were wrong, the copy in the file is given up, and that is what the check finds.
  const auto [plan, lost] = GENERATE(table<const char*, std::uint64_t>(
      {{"read#400=eio", 0}, {"read#400=bitflip", 1}, {"read#400=truncate", 1}}));
  CAPTURE(plan);
  BelowOptions below;
  below.faults = *transfer::FaultPlan::parse(plan);
  World w = make_world("lru", below);
  create(w, 800);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 40);
  REQUIRE_FALSE(ran);
  CHECK(w.log->steps.size() < 40);
  CHECK(w.machine->check().has_value() == (lost == 0));
  CHECK(w.log->pages_bad == lost);
  CHECK(w.log->reads_bad == 0);
  CHECK(w.log->pages_checked > 300);
  // Nothing goes on after it.
  CHECK_FALSE(w.machine->end_step(0));
}

TEST_CASE("a write to the file that fails ends a later step, and the page is where it was") {
  BelowOptions below;
  below.faults = *transfer::FaultPlan::parse("write#170=enospc");
  World w = make_world("lru", below, {60, 70, 4000, 96});
  create(w, 600);  // 222 full pages, 70 of them in host memory
  Rng rng(11);
  const Status ran = random_steps(w, rng, 60);
  REQUIRE_FALSE(ran);
  check_all(w);
}

TEST_CASE("a step that waits too long for the file fails with a reason and does not hang") {
  BelowOptions below;
  below.faults = *transfer::FaultPlan::parse("read#300=slow:300000");
  below.bound_ns = 20'000'000;
  World w = make_world("lru", below);
  create(w, 800);
  Rng rng(11);
  const Status ran = random_steps(w, rng, 40);
  REQUIRE_FALSE(ran);
  CHECK(ran.error().reason == Reason::kPending);
  check_all(w);
}

TEST_CASE("a place that goes down and is filled again between two steps: both pages are right") {
  PageTable table(kLayers, kHeads, std::vector<std::uint32_t>{60, 120, 4000});
  const PageId a = table.open_chunk(), b = a + 1, c = a + 2;
  World w = make_world("lru", {});
  w.machine->attach(table);
  using Ops = std::vector<PageOp>;
  const auto fill = [](TierId tier, PageId page) {
    return PageOp{PageOp::Kind::kFill, tier, tier, page, 1, 0, 0};
  };
  const auto copy = [](TierId from, TierId to, PageId page, SlotId to_slot) {
    return PageOp{PageOp::Kind::kCopy, from, to, page, 1, 0, to_slot};
  };
  must(w.machine->set_up(Ops{fill(1, a), fill(0, c)}));
  must(w.machine->set_up(Ops{copy(1, 2, a, 5), fill(1, b)}));        // made anew
  must(w.machine->set_up(Ops{copy(1, 2, b, 6), copy(0, 1, c, 0)}));  // or copied from HBM
  check_all(w);
  CHECK(w.log->pages_checked == 4);
  CHECK_FALSE(w.machine->set_up(Ops{copy(1, 2, b, 7)}));  // it is not there any more
}

TEST_CASE("a page whose bytes in the file are wrong has no box: the step does not begin") {
  BelowOptions below;
  below.faults = *transfer::FaultPlan::parse("read#3=bitflip");
  World w = make_world("lru", below);
  create(w, 800);
  Rng rng(11);
  const Status ran = random_step(w, rng);
  REQUIRE_FALSE(ran);
  CHECK(ran.error().reason == Reason::kChecksum);
  CHECK(ran.error().what.find("from the tier below") != std::string::npos);
}

TEST_CASE("a slow file alone makes a step wait, which is told") {
  BelowOptions below;
  below.faults = *transfer::FaultPlan::parse("read#1/9=slow:2000");
  World w = make_world("lru", below);
  create(w, 600);
  Rng rng(11);
  must(random_steps(w, rng, 6));
  check_all(w);
  Seconds waited = 0;
  for (const auto& s : w.log->steps) waited += s.below.waited;
  CHECK(waited > 2e-3);
}

TEST_CASE(
    "HBM, host memory and file full: layers are refused, given up, and go on after a release") {
  World w = make_world("lru", {}, {36, 60, 130, 96});
  create(w, 400);  // 25 full blocks of 6 pages
  create(w, 80);   // 5
  Rng rng(11);
  std::uint32_t refused = 0;
  for (int t = 0; t < 60; ++t) {
    const Status ran = random_step(w, rng, {2});
    if (ran) continue;
    INFO(ran.error().what);
    REQUIRE(ran.error().code == Code::kRefused);
    ++refused;
    w.runtime->abandon_step();
    if (refused == 4) break;
  }
  REQUIRE(refused > 0);
  must(w.runtime->validate());
  must(w.runtime->release(w.live.front()));
  w.live.erase(w.live.begin());
  must(random_steps(w, rng, 20));
  check_all(w);
}

TEST_CASE("a file only below host memory, and one only") {
  CudaMachineOptions o;
  o.platform = test::tiny_platform(true);
  o.geometry = kGeometry;
  o.tier_pages = {60, 60, 60};
  CHECK(o.below_home() == 2);
  CHECK(o.home_places() == 60 + 256);
  o.tier_pages[1] = 160000;
  CHECK(o.home_places() == 170000);
  o.tier_pages[2] = 0;
  CHECK(o.below_home() == 0);
  CHECK(o.home_places() == 160000);
  // Memory that this process does not see, as another GPU's.
  o.tier_pages = {60, 60, 60};
  class Unseen final : public FakeDevice {
   public:
    using FakeDevice::FakeDevice;
    cuda::TierMemory memory(TierId tier) const override {
      cuda::TierMemory m = FakeDevice::memory(tier);
      m.host = {};
      return m;
    }
  };
  const auto made = cuda::DecodeMachine::create(
      o, std::make_unique<Unseen>(std::vector<std::uint32_t>{60, 400}, 4096,
                                  cuda::ProgramOptions{.layers = kLayers}, Pace::kEager, 1));
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Code::kUnsupported);
}
