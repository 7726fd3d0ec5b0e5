// SPDX-License-Identifier: Apache-2.0
// The machine with a GPU, without the GPU: the lists that it makes, executed by a device of host
// memory in every order that the step's program allows.
#include "runtime/machines/cuda/decode_machine.hpp"

#include <catch2/catch.hpp>

#include "placement/policy.hpp"
#include "tests/runtime/cuda/decode_world.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

namespace {

World make_world(const std::string& policy, std::uint32_t hbm, Pace pace, std::uint64_t seed,
                 std::uint32_t join_late = 0) {
  WorldOptions o;
  o.policy = policy;
  o.tier_pages = {hbm, 4000};
  o.pace = pace;
  o.seed = seed;
  o.join_late = join_late;
  return test::make_world(o);
}

constexpr RandomReads kWithMasses{3, true};

/// Sequences come, fork, sleep, wake and go.
void random_life(World& w, Rng& rng, int steps) {
  for (int t = 0; t < steps; ++t) {
    const std::uint32_t dice = rng.below(12);
    if (w.live.empty() || (dice < 2 && w.live.size() < 4)) create(w, 20 + rng.below(150));
    if (dice == 2 && w.live.size() < 4) {
      const auto child = w.runtime->fork(w.live.front());
      REQUIRE(child);
      w.live.push_back(*child);
    }
    if (dice == 3 && w.live.size() > 1) {
      must(w.runtime->suspend(w.live.back()));
      w.asleep.push_back(w.live.back());
      w.live.pop_back();
    }
    if (dice == 4 && !w.asleep.empty() && w.runtime->resume(w.asleep.back())) {
      w.live.push_back(w.asleep.back());
      w.asleep.pop_back();
    }
    if (dice == 5 && w.live.size() > 1) {
      must(w.runtime->release(w.live.front()));
      w.live.erase(w.live.begin());
    }
    if (dice == 6) must(w.runtime->append(w.live.front(), 1 + rng.below(40)));
    must(random_step(w, rng, kWithMasses));
  }
}

}  // namespace

TEST_CASE("whatever the side stream's pace, attention reads the right pages and all slots hold") {
  const std::string policy =
      GENERATE(as<std::string>{}, "lru", "lru-promote", "lfu-importance", "sa", "none", "static");
  const Pace pace = GENERATE(Pace::kEager, Pace::kLazy, Pace::kRandom);
  CAPTURE(policy, static_cast<int>(pace));
  World w = make_world(policy, 60, pace, 3);
  Rng rng(17);
  random_life(w, rng, 60);
  must(w.machine->drain());
  must(w.machine->check());
  CHECK(w.device->reads > 1000);
  CHECK(w.device->early > 0);  // copies on write and resumed tails
  CHECK(w.device->moves > 0);  // at least write-backs
  if (policy == "lru") CHECK(w.device->installs > 0);
  CHECK(w.log->steps.size() == 60);
  CHECK(w.log->steps.back().layers.size() == kLayers);
}

TEST_CASE("a side stream that is joined a layer late is found out") {
  // The same program but for the joins; the copies wait as long as they may.
  World w = make_world("lru-promote", 60, Pace::kLazy, 3, 1);
  Rng rng(17);
  random_life(w, rng, 60);
  const Status good = w.machine->check();
  REQUIRE_FALSE(good);
  CHECK(good.error().code == Code::kCorrupt);
}

TEST_CASE("a page that was overwritten behind the machine's back is found out") {
  World w = make_world("lru", 60, Pace::kEager, 3);
  create(w, 100);
  Rng rng(5);
  must(random_step(w, rng, kWithMasses));
  must(w.machine->check());
  const kernels::PageContents foreign{FakeDevice::address_of(1, 0), 4711, kTokens};
  must(w.device->set_up({&foreign, 1}, {}));
  const Status good = w.machine->check();
  REQUIRE_FALSE(good);
  CHECK(w.log->pages_bad == 1);
}

TEST_CASE("only entries that changed are sent, and a step is captured once") {
  World w = make_world("none", 200, Pace::kEager, 1);
  create(w, 160);  // ten full pages a group, and its tail
  Runtime& r = *w.runtime;
  const std::vector<std::uint32_t> pages{0, 3, 7};
  for (int t = 0; t < 8; ++t) {
    must(r.begin_step(w.live));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<GroupSelection> groups(kHeads);
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        groups[h].sequence = w.live[0];
        groups[h].kv_head = h;
        groups[h].pages = pages;
      }
      must(r.run_layer(layer, groups));
    }
    REQUIRE(r.end_step());
    // Set-up tells home copies; all fit HBM, so the first step corrects the three pages of each
    // group, and says where the new tail is.
    CHECK(w.device->entry_writes == kLayers * kHeads * 4);
  }
  CHECK(w.device->prepared == 1);
  CHECK(w.device->unknown_at_start(0, 10) == 0);  // boxes of all prompt pages
  CHECK(w.log->captures == 1);
}

TEST_CASE("tables grow with the context by another capture") {
  World w = make_world("lru", 60, Pace::kEager, 1);
  create(w, 16);
  Rng rng(1);
  must(random_step(w, rng, kWithMasses));
  CHECK(w.log->captures == 1);
  must(w.runtime->append(w.live[0], 128 * kTokens));
  must(random_step(w, rng, kWithMasses));
  CHECK(w.log->captures == 2);
  must(w.machine->check());
}

TEST_CASE("a read of what the slot does not hold is refused before it is launched") {
  World w = make_world("none", 200, Pace::kEager, 1);
  PageTable table(kLayers, kHeads, std::vector<std::uint32_t>{200, 4000});
  const PageId full = table.open_chunk(), tail = full + 1;
  table.open_block(full, 0, 0);
  table.open_block(tail, 1, 0);
  w.machine->attach(table);
  std::vector<PageOp> fill;
  for (const std::uint32_t head : {0U, 1U}) {
    fill.push_back({PageOp::Kind::kFill, 1, 1, full + head * PageTable::kRun, 1, head, head});
  }
  must(w.machine->set_up(fill));
  const std::vector<PageId> blocks{full, tail};
  const std::vector<std::uint32_t> pages{0};
  const std::vector<std::uint8_t> at_home{0};
  std::vector<GroupWork> groups;
  std::vector<PageOp> tails;
  for (const std::uint32_t head : {0U, 1U}) {
    const PageId offset = head * PageTable::kRun;
    groups.push_back({0, head, kTokens + 1, blocks, offset, pages, at_home});
    tails.push_back({PageOp::Kind::kFill, 0, 0, tail + offset, 1, head, head, 1});
  }
  must(w.machine->run({0, 0, tails, groups, nullptr, nullptr}));
  SECTION("another version") {
    ++table.version[full + PageTable::kRun];
    const Status ran = w.machine->run({0, 0, tails, groups, nullptr, nullptr});
    REQUIRE_FALSE(ran);
    CHECK(ran.error().code == Code::kCorrupt);
  }
  SECTION("a place where it never was") {
    const std::vector<std::uint8_t> in_hbm{1};
    groups[1].hits = in_hbm;
    CHECK_FALSE(w.machine->run({0, 0, tails, groups, nullptr, nullptr}));
  }
  SECTION("a page that is kept and that nobody reads") {
    groups[1].hits = {};
    groups[1].pages = {};
    tails.push_back({PageOp::Kind::kFetch, 1, 0, full + PageTable::kRun, 1, 1, 7});
    CHECK_FALSE(w.machine->run({0, 0, tails, groups, nullptr, nullptr}));
  }
}

TEST_CASE("a program without moves neither forks nor joins, and has every layer once") {
  using cuda::LaunchKind;
  cuda::ProgramOptions o;
  o.layers = 2;
  o.moves = false;
  std::size_t attends = 0;
  for (const auto& launch : cuda::step_program(o)) {
    CHECK(launch.kind != LaunchKind::kMove);
    CHECK(launch.kind != LaunchKind::kJoin);
    CHECK(launch.kind != LaunchKind::kFork);
    attends += launch.kind == LaunchKind::kAttend ? 1 : 0;
  }
  CHECK(attends == 2);
}

TEST_CASE("a step's kind is what any of its layers asks for") {
  const auto kind = [](std::uint32_t moves, std::uint32_t installs) {
    cuda::ListWriter lists;
    lists.begin(7, 3);
    kernels::LayerLists last{};
    last.entries = 5;
    last.moves = moves;
    last.installs = installs;
    lists.layer(2, last);
    return cuda::kind_of(lists.finish());
  };
  CHECK((!kind(0, 0).moves && !kind(0, 0).installs));
  CHECK((kind(2, 0).moves && !kind(2, 0).installs));
  CHECK((!kind(0, 1).moves && kind(0, 1).installs));
  CHECK((kind(1, 1).moves && kind(1, 1).installs));
  std::set<std::size_t> places;
  for (const bool moves : {false, true})
    for (const bool installs : {false, true})
      places.insert(cuda::StepKind{moves, installs}.index());
  CHECK(places.size() == cuda::StepKind::kCount);
  CHECK(*places.rbegin() < cuda::StepKind::kCount);
}
