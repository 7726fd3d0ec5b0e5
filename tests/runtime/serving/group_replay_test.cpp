// SPDX-License-Identifier: Apache-2.0
// A recorded workload over several devices: what they do between them is what one would do, a
// skewed group balances itself, and each device keeps to its budget.
#include "runtime/serving/group_replay.hpp"

#include <numeric>

#include <catch2/catch.hpp>

#include "runtime/machines/host.hpp"
#include "tests/runtime/predictors/recorded_cut.hpp"
#include "tests/support/content_machine.hpp"

using namespace lehr;
using namespace lehr::serving;

namespace {

constexpr Split kSplits[] = {Split::kHeads, Split::kLayers, Split::kTokens};

struct World {
  runtime::test::RecordedCut cut{0.25, 40};

  std::uint32_t pages() const { return static_cast<std::uint32_t>(cut.workload().total_pages()); }
  GroupReplayOptions group(Split split, const std::vector<double>& hbm) const {
    GroupReplayOptions o;
    o.split = split;
    const runtime::ReplayOptions one = cut.options();
    for (const double share : hbm) {
      runtime::RuntimeOptions device = one.runtime;
      device.tier_pages[kHbm] = static_cast<std::uint32_t>(share * pages());
      o.devices.push_back(device);
    }
    const placement::Platform& p = one.runtime.platform;
    o.between = {p.links[p.link(kHbm, p.home)], p.links[p.link(p.home, kHbm)]};
    o.max_steps = one.max_steps;
    o.make = [](std::uint32_t,
                const runtime::RuntimeOptions&) -> Result<std::unique_ptr<runtime::Machine>> {
      // Refuses every page that is not as it should be.
      return std::unique_ptr<runtime::Machine>(std::make_unique<test::ContentMachine>());
    };
    return o;
  }
  GroupOutcome replayed(const GroupReplayOptions& options) const {
    auto outcome = replay_group(cut.workload(), options);
    INFO((outcome ? std::string() : outcome.error().what));
    REQUIRE(outcome);
    return *std::move(outcome);
  }
};

std::uint64_t sum(const GroupOutcome& o, std::uint64_t runtime::StepReport::*count) {
  std::uint64_t all = 0;
  for (const DeviceOutcome& d : o.devices) all += d.all.*count;
  return all;
}

}  // namespace

TEST_CASE("a group of one is a replay") {
  const World world;
  const auto one = world.cut.replayed(world.cut.options());
  REQUIRE(one);
  for (const Split split : kSplits) {
    const GroupOutcome group = world.replayed(world.group(split, {0.25}));
    CHECK(group.whole.step_seconds == one->step_seconds);
    CHECK(group.whole.all.hits == one->all.hits);
    CHECK(group.merging == 0);
  }
}

TEST_CASE("devices read between them what one reads, each within its budget") {
  const World world;
  const auto one = world.cut.replayed(world.cut.options());
  for (const Split split : kSplits) {
    const GroupOutcome group = world.replayed(world.group(split, {0.5, 0.7, 1.0}));
    CHECK(sum(group, &runtime::StepReport::reads) == one->all.reads);
    CHECK(sum(group, &runtime::StepReport::tail_reads) == one->all.tail_reads);
    CHECK(sum(group, &runtime::StepReport::written_back) == one->all.written_back);
    CHECK(group.whole.all.misses == 0);  // each has room for its part
    for (const DeviceOutcome& d : group.devices) CHECK(d.all.reads > one->all.reads / 20);
    const GroupOutcome tight = world.replayed(world.group(split, {0.04, 0.04, 0.04}));
    CHECK(sum(tight, &runtime::StepReport::reads) == one->all.reads);
    CHECK(tight.whole.all.misses > 0);
  }
}

TEST_CASE("a step takes its slowest device and the merge, and layers one after the other") {
  const World world;
  for (const Split split : kSplits) {
    const GroupOutcome group = world.replayed(world.group(split, {0.05, 0.2}));
    const double merge = group.merging / group.whole.steps;
    CHECK(merge > 0);
    for (std::size_t t = 0; t < group.whole.steps; ++t) {
      const double a = group.devices[0].step_seconds[t], b = group.devices[1].step_seconds[t];
      const double parts = split == Split::kLayers ? a + b : std::max(a, b);
      CHECK(group.whole.step_seconds[t] == Approx(parts + merge));
    }
    Seconds least = group.devices[0].all.exposed, most = 0;
    for (const DeviceOutcome& d : group.devices) {
      least = std::min(least, d.all.exposed);
      most += d.all.exposed;
    }
    CHECK(group.whole.all.exposed >= least + group.merging * 0.999);  // a wait like any other
    CHECK(group.whole.all.exposed <= most + group.merging * 1.001);
  }
}

TEST_CASE("what devices send each other, by hand") {
  World world;
  GroupReplayOptions o = world.group(Split::kTokens, {1.0, 1.0});
  o.between = {{"wire", 0, 0, BandwidthCurve(1e6), 1e-3}};
  o.results = {.layers = 2,
               .kv_heads = 1,
               .q_heads = 3,
               .head_dim = 8,
               .page_tokens = 16,
               .element_bytes = 2};
  // One sequence, 3 heads: 8 floats and a pair of floats each, in both layers.
  CHECK(world.replayed(o).merging / 40 == Approx(2 * (1e-3 + 3 * 40 / 1e6)));
  o.split = Split::kHeads;  // half of 3 heads' outputs of 16 bytes
  CHECK(world.replayed(o).merging / 40 == Approx(2 * (1e-3 + 24 / 1e6)));
  o.split = Split::kLayers;
  CHECK(world.replayed(o).merging / 40 == Approx(1e-3 + 48 / 1e6));
}

TEST_CASE("a device with little HBM hands units on, and steps become shorter than without") {
  const World world;
  GroupReplayOptions o = world.group(Split::kLayers, {0.03, 0.8});
  // By layers a step is the sum of both; by heads, of which there are three, the slowest counts.
  for (const Split split : {Split::kLayers, Split::kHeads}) {
    o.split = split;
    o.weights = {2, 1};
    o.rebalance_every = 0;
    const GroupOutcome control = world.replayed(o);
    o.rebalance_every = 8;
    o.rule = {4, 0.02};
    const GroupOutcome group = world.replayed(o);
    CHECK(control.migrations.empty());
    REQUIRE_FALSE(group.migrations.empty());
    CHECK(group.devices[0].units < group.devices[0].first_units);
    CHECK(group.whole.all.reads == control.whole.all.reads);
    CHECK(group.whole.all.total < control.whole.all.total);  // the moves' own time included
    const auto last = static_cast<std::ptrdiff_t>(10);
    const auto tail = [&](const GroupOutcome& g) {
      return std::accumulate(g.whole.step_seconds.end() - last, g.whole.step_seconds.end(), 0.0);
    };
    CHECK(tail(group) < tail(control));
    Bytes bytes = 0;
    Seconds seconds = 0;
    for (const Migration& m : group.migrations) {
      CHECK(m.refused.empty());
      CHECK(m.step % 8 == 0);
      CHECK(m.expected < m.slowest);
      CHECK(m.sent_pages > 0);
      CHECK(m.sent_pages <= m.pages);
      CHECK(std::accumulate(m.after.begin(), m.after.end(), 0U) ==
            std::accumulate(m.before.begin(), m.before.end(), 0U));
      bytes += m.bytes;
      seconds += m.seconds;
    }
    CHECK(bytes > 0);
    CHECK(group.moving == Approx(seconds));
  }
}

TEST_CASE("an even group stays as it was dealt") {
  const World world;
  GroupReplayOptions o = world.group(Split::kLayers, {0.2, 0.2});
  o.rebalance_every = 8;
  const GroupOutcome group = world.replayed(o);
  CHECK(group.migrations.empty());
  o.rebalance_every = 0;
  CHECK(world.replayed(o).whole.step_seconds == group.whole.step_seconds);
}

TEST_CASE("layers do not move where the sum of all devices would become longer") {
  const World world;
  // The first device has most layers, all in HBM, and takes longest; the second reads over the
  // link.
  GroupReplayOptions o = world.group(Split::kLayers, {1.0, 0.004});
  o.weights = {28, 1};
  o.rebalance_every = 8;
  o.rule = {1, 0.0};
  const GroupOutcome group = world.replayed(o);
  const runtime::StepReport &first = group.devices[0].all, &second = group.devices[1].all;
  CHECK(first.total > second.total);
  CHECK(first.total / 28 < second.total / 2);
  CHECK(group.migrations.empty());
}

TEST_CASE("units that find no room stay, and it is said why") {
  const World world;
  // The second device is fast, but its host memory holds no more than what it has.
  GroupReplayOptions o = world.group(Split::kLayers, {0.05, 0.9});
  o.weights = {2, 1};
  const std::uint32_t home = o.devices[1].platform.home;
  o.devices[1].tier_pages[home] = world.pages() / 3 + 100;
  for (std::size_t t = home + 1; t < o.devices[1].tier_pages.size(); ++t)
    o.devices[1].tier_pages[t] = 0;
  o.rebalance_every = 8;
  o.rule = {4, 0.02};
  const GroupOutcome group = world.replayed(o);
  REQUIRE_FALSE(group.migrations.empty());
  for (const Migration& m : group.migrations) CHECK_FALSE(m.refused.empty());
  CHECK(group.devices[0].units == group.devices[0].first_units);
  CHECK(group.moving == 0);
}

TEST_CASE(
    "a change that one device refuses moves nothing on the others, and says so in its figures") {
  const World world;
  // The last device is slow and the first has room: layers shift through the one between, whose
  // host memory holds no more than what it has.
  GroupReplayOptions o = world.group(Split::kLayers, {0.9, 0.2, 0.05});
  const auto room = [&](std::uint32_t pages) {
    const std::uint32_t home = o.devices[1].platform.home;
    o.devices[1].tier_pages[home] = pages;
    for (std::size_t t = home + 1; t < o.devices[1].tier_pages.size(); ++t)
      o.devices[1].tier_pages[t] = 0;
  };
  o.rebalance_every = 8;
  o.rule = {1, 0.0};
  room(world.pages() / 3 + 60);
  const GroupOutcome refused = world.replayed(o);
  REQUIRE_FALSE(refused.migrations.empty());
  for (const Migration& m : refused.migrations) {
    CHECK_FALSE(m.refused.empty());
    CHECK(m.after[0] == m.before[0] + 1);
    CHECK((m.pages == 0 && m.sent_pages == 0 && m.bytes == 0 && m.seconds == 0));
  }
  CHECK(refused.moving == 0);
  o.rebalance_every = 0;
  const GroupOutcome never = world.replayed(o);
  CHECK(refused.whole.all.reads == never.whole.all.reads);
  // The control: with room they do move, the first device's pages among them.
  o.rebalance_every = 8;
  room(world.pages());
  const GroupOutcome moved = world.replayed(o);
  REQUIRE_FALSE(moved.migrations.empty());
  CHECK(moved.migrations.front().refused.empty());
  CHECK(moved.migrations.front().pages > 0);
}

TEST_CASE("promotions take turns") {
  const World world;
  GroupReplayOptions o = world.group(Split::kHeads, {0.1, 0.1});
  for (auto& device : o.devices) device.policy = "table";
  const auto both = [](const GroupOutcome& g) {
    int steps = 0;
    for (std::size_t t = 0; t < g.whole.steps; ++t)
      steps += g.devices[0].promoted[t] > 0 && g.devices[1].promoted[t] > 0 ? 1 : 0;
    return steps;
  };
  CHECK(both(world.replayed(o)) > 5);  // the control
  o.take_turns = true;
  const GroupOutcome turns = world.replayed(o);
  CHECK(both(turns) == 0);
  CHECK(sum(turns, &runtime::StepReport::promoted) > 0);
}

TEST_CASE("a policy that knows the future knows it on every device") {
  const World world;
  for (const Split split : kSplits) {
    GroupReplayOptions o = world.group(split, {0.05, 0.05});
    for (auto& device : o.devices) device.policy = "lru";
    const std::uint64_t lru = world.replayed(o).whole.all.misses;
    for (auto& device : o.devices) device.policy = "min";
    CHECK(world.replayed(o).whole.all.misses < lru);
  }
}

TEST_CASE("real bytes between real arenas, every page compared at every read") {
  const World world;
  for (const Split split : kSplits) {
    GroupReplayOptions o = world.group(split, {0.04, 0.2});
    o.max_steps = 20;
    o.weights = {1, 2};
    if (split != Split::kTokens) o.rebalance_every = 5;
    o.rule = {4, 0.0};
    for (auto& device : o.devices) {
      device.tier_pages[device.platform.home] = world.pages();
      for (std::size_t t = device.platform.home + 1U; t < device.tier_pages.size(); ++t)
        device.tier_pages[t] = 0;
      device.page_bytes = 256;
    }
    o.make =
        [](std::uint32_t,
           const runtime::RuntimeOptions& options) -> Result<std::unique_ptr<runtime::Machine>> {
      runtime::HostMachineOptions host;
      host.platform = options.platform;
      host.tier_pages = options.tier_pages;
      host.page_bytes = options.page_bytes;
      return runtime::make_host_machine(host);
    };
    const GroupOutcome group = world.replayed(o);
    CHECK(group.whole.measured_seconds.size() == 20);
    CHECK_FALSE(group.devices[1].notes.empty());
  }
}

TEST_CASE("groups that cannot be are refused by reason") {
  const World world;
  const auto refused = [&](const GroupReplayOptions& o) {
    auto outcome = replay_group(world.cut.workload(), o);
    REQUIRE_FALSE(outcome);
    return outcome.error();
  };
  GroupReplayOptions o = world.group(Split::kHeads, {0.1, 0.1, 0.1, 0.1});
  CHECK(refused(o).reason == Reason::kOutOfRange);  // three heads
  o = world.group(Split::kHeads, {0.1, 0.1});
  o.weights = {1};
  CHECK(refused(o).code == Code::kInvalid);
  o.weights = {1, -1};
  CHECK(refused(o).code == Code::kInvalid);
  o.split = Split::kTokens;
  CHECK(refused(o).code == Code::kInvalid);
  o.weights.clear();
  o.own_geometry = true;
  CHECK(refused(o).code == Code::kUnsupported);
  o.split = Split::kHeads;
  o.rebalance_every = 4;
  CHECK(refused(o).code == Code::kUnsupported);
  o = world.group(Split::kHeads, {0.1, 0.1});
  o.devices[1].tier_pages[kHbm] = 3;
  CHECK(refused(o).reason == Reason::kOverBudget);
  CHECK(refused(o).what.find("device 1") == 0);
  CHECK(refused({}).code == Code::kInvalid);
}
