// SPDX-License-Identifier: Apache-2.0
// Any policy, any workload: capacity kept, every byte accounted, no page lost, contents right.
#include <set>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/policy.hpp"
#include "runtime/runtime.hpp"
#include "tests/support/content_machine.hpp"
#include "tests/support/tiny_platform.hpp"

using namespace lehr;
using namespace lehr::runtime;

namespace {

struct World {
  std::unique_ptr<Runtime> runtime;
  test::ContentMachine* machine = nullptr;
  std::vector<SequenceId> live;
  std::vector<SequenceId> asleep;
};

World make_world(const std::string& policy, std::uint32_t hbm, std::uint32_t host,
                 std::uint32_t nvme) {
  RuntimeOptions o;
  o.platform = test::tiny_platform(true);
  o.geometry = {.layers = 3,
                .kv_heads = 2,
                .q_heads = 4,
                .head_dim = 1,
                .page_tokens = 4,
                .element_bytes = 1};
  o.tier_pages = {hbm, host, nvme};
  o.policy = policy;
  World w;
  auto machine = std::make_unique<test::ContentMachine>();
  w.machine = machine.get();
  auto made = Runtime::create(o, std::move(machine));
  REQUIRE(made);
  w.runtime = *std::move(made);
  return w;
}

/// One step with random selections and masses; returns what it read.
void random_step(World& w, Rng& rng) {
  Runtime& r = *w.runtime;
  REQUIRE(r.begin_step(w.live));
  std::uint64_t expected_reads = 0;
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    std::vector<GroupSelection> groups;
    std::vector<std::vector<std::uint32_t>> pages;
    std::vector<std::vector<MassCode>> mass;
    pages.reserve(w.live.size() * 2);
    mass.reserve(w.live.size() * 2);
    for (const SequenceId s : w.live) {
      const auto blocks = static_cast<std::uint32_t>((*r.tokens(s) + 3) / 4);
      for (std::uint32_t head = 0; head < 2; ++head) {
        auto& chosen = pages.emplace_back();
        auto& codes = mass.emplace_back();
        for (std::uint32_t p = 0; p < blocks; ++p) {
          codes.push_back(static_cast<MassCode>(rng.below(256)));
          if (rng.below(3) == 0) chosen.push_back(p);
        }
        GroupSelection g;
        g.sequence = s;
        g.kv_head = head;
        g.pages = chosen;
        g.mass = codes.data();
        g.peak = codes.data();
        groups.push_back(g);
      }
    }
    const Status ran = r.run_layer(layer, groups);
    INFO((ran ? std::string() : ran.error().what));
    REQUIRE(ran);
    REQUIRE(r.table().slots(kHbm).used() <= r.table().slots(kHbm).capacity());
    for (PageId p = 0; p < r.table().rows(); ++p) {
      if (r.table().flags[p] == 0) REQUIRE(r.table().guard[p] == 0);  // nothing stays held
    }
    expected_reads += 2 * w.live.size();
  }
  const auto report = r.end_step();
  REQUIRE(report);
  CHECK(report->tail_reads == expected_reads);
  CHECK(report->hits + report->misses == report->reads);
  const Bytes up = report->link[0].bytes;
  CHECK(up >= 8 * report->misses);
  const Status valid = r.validate();
  INFO((valid ? std::string() : valid.error().what));
  REQUIRE(valid);
}

/// A sequence comes, goes, forks, grows, sleeps or wakes, where it can.
void random_change(World& w, Rng& rng) {
  Runtime& r = *w.runtime;
  const std::uint32_t dice = rng.below(10);
  const bool room = w.live.size() < 3;
  if (w.live.empty() || (dice < 2 && room)) {
    const SequenceInfo info{rng.below(30), {}};
    const auto made = r.create_sequences({&info, 1});
    REQUIRE(made);
    w.live.push_back(made->front());
  } else if (dice == 2 && w.live.size() > 1) {
    REQUIRE(r.release(w.live.back()));
    w.live.pop_back();
  } else if (dice == 3 && room) {
    const auto child = r.fork(w.live.front());
    if (child) w.live.push_back(*child);
  } else if (dice == 4 && w.live.size() > 1 && r.suspend(w.live.back())) {
    w.asleep.push_back(w.live.back());
    w.live.pop_back();
  } else if (dice == 5 && room && !w.asleep.empty() && r.resume(w.asleep.back())) {
    w.live.push_back(w.asleep.back());
    w.asleep.pop_back();
  } else if (dice == 6) {
    (void)r.append(w.live.front(), rng.below(9));
  }
}

}  // namespace

TEST_CASE("any policy keeps capacity, loses no page and reads right contents") {
  std::vector<std::string> names;
  for (const auto* d : placement::policies()) {
    if (!d->traits.needs_future && !d->traits.unlimited) names.emplace_back(d->name);
  }
  const std::string policy = GENERATE_COPY(from_range(names));
  const auto seed = GENERATE(1U, 2U);
  CAPTURE(policy, seed);
  Rng rng(seed);
  World w = make_world(policy, 40, 60, 400);
  for (int t = 0; t < 40; ++t) {
    random_change(w, rng);
    random_step(w, rng);
  }
  CHECK(w.machine->reads > 0);
  for (const SequenceId s : w.live) REQUIRE(w.runtime->release(s));
  for (const SequenceId s : w.asleep) REQUIRE(w.runtime->release(s));
  CHECK(w.runtime->table().live_pages() == 0);
  for (TierId t = 0; t < 3; ++t) CHECK(w.runtime->table().slots(t).used() == 0);
}

TEST_CASE("control: a machine that drops a copy is caught") {
  // The checks above would fail if contents were lost: a read of a slot that nothing filled is
  // refused.
  test::ContentMachine machine;
  const PageOp lost{PageOp::Kind::kRead, 1, 0, 7, 1, 3, kNoSlot};
  const Status read = machine.run_layer(0, 0, {&lost, 1});
  REQUIRE_FALSE(read);
  CHECK(read.error().code == Code::kCorrupt);
  const PageOp fill{PageOp::Kind::kFill, 1, 1, 7, 1, 3, 3};
  REQUIRE(machine.run_layer(0, 0, {&fill, 1}));
  CHECK(machine.run_layer(0, 0, {&lost, 1}));
  PageOp stale = lost;
  stale.version = 2;
  CHECK_FALSE(machine.run_layer(0, 0, {&stale, 1}));
}
