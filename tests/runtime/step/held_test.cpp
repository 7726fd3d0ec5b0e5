// SPDX-License-Identifier: Apache-2.0
// Runtimes that hold some of a model's KV groups, as devices do that share one: who reads what, and
// what moves when groups change device.
#include "tests/runtime/step/tiny_runtime.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

namespace {

/// Two layers of two KV heads: groups 0 to 3.
RuntimeOptions four_groups(std::uint32_t hbm_pages, std::vector<std::uint32_t> groups) {
  RuntimeOptions o = small(hbm_pages);
  o.geometry.layers = 2;
  o.geometry.kv_heads = o.geometry.q_heads = 2;
  o.groups = std::move(groups);
  return o;
}

/// A step in which every group that is here reads `pages`.
StepReport read(Runtime& r, const std::vector<SequenceId>& batch,
                const std::vector<std::uint32_t>& pages, Growth growth = Growth::kOneToken) {
  REQUIRE(r.begin_step(batch, growth));
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    std::vector<GroupSelection> groups;
    for (const SequenceId s : batch) {
      for (const std::uint32_t group : r.groups()) {
        if (group / 2 != layer) continue;
        GroupSelection g;
        g.sequence = s;
        g.kv_head = group % 2;
        g.pages = pages;
        groups.push_back(g);
      }
    }
    if (groups.empty()) continue;
    const Status ran = r.run_layer(layer, groups);
    INFO((ran ? std::string() : ran.error().what));
    REQUIRE(ran);
  }
  const auto report = r.end_step();
  REQUIRE(report);
  REQUIRE(r.validate());
  return *report;
}

const WantedInHbm kEverything = [](std::uint32_t, std::uint32_t, std::size_t) { return true; };

}  // namespace

TEST_CASE("what devices hold between them is what one holds alone") {
  const auto all = make(four_groups(100, {}));
  const auto first = make(four_groups(100, {0, 1, 2})), second = make(four_groups(100, {3}));
  const std::vector<SequenceId> whole{start(*all, 13)}, a{start(*first, 13)}, b{start(*second, 13)};
  for (int i = 0; i < 8; ++i) {
    const StepReport one = read(*all, whole, {0, 2}), two = read(*first, a, {0, 2}),
                     three = read(*second, b, {0, 2});
    CHECK(two.reads + three.reads == one.reads);
    CHECK(three.reads == 3);
    CHECK(two.written_back + three.written_back == one.written_back);
    CHECK(two.hits == two.reads);
  }
  CHECK(first->table().slots(kHbm).used() == 3 * second->table().slots(kHbm).used());
}

TEST_CASE("weights are read where their heads are, and layers without heads are left out") {
  auto options = four_groups(100, {3});
  options.weights_bytes = 4000;
  const auto r = make(options);
  const std::vector<SequenceId> s{start(*r, 8)};
  const StepReport report = read(*r, s, {0});
  // Half of a layer's 2000; a page of 8 bytes; the token that is written, and read: 2 bytes each.
  CHECK(report.total == Approx((1000 + 8 + 2 + 2) / 1000.0));
  REQUIRE(r->begin_step(s));
  CHECK_FALSE(r->run_layer(0, {}));
  GroupSelection elsewhere;
  elsewhere.sequence = s.front();
  CHECK(r->run_layer(1, {&elsewhere, 1}).error().reason == Reason::kOutOfRange);
  CHECK(r->run_layer(1, {}));
  CHECK(r->end_step());
}

TEST_CASE("groups that change device bring their pages, and what stays is not touched") {
  const auto from = make(four_groups(11, {0, 1, 2})), to = make(four_groups(100, {3}));
  std::vector<SequenceId> a{start(*from, 14)}, b{start(*to, 14)};  // 3 full pages and a tail
  for (int i = 0; i < 3; ++i) (void)read(*from, a, {0, 1});
  for (int i = 0; i < 3; ++i) (void)read(*to, b, {0, 1});
  a.push_back(*from->fork(a.front()));
  b.push_back(*to->fork(b.front()));
  const auto resident_here = [&](const Runtime& r, std::uint32_t group) {
    std::vector<bool> out;
    for (const PageId base : r.blocks(a.front())) {
      const PageId page = base + r.table().group_offset(group / 2, group % 2);
      out.push_back(resident(r.table().residency[page], kHbm));
    }
    return out;
  };
  const auto stays = resident_here(*from, 0);
  const std::vector<bool> hot = resident_here(*from, 2);
  const auto came = to->hold({2, 3}, [&](SequenceId, std::uint32_t group, std::size_t block) {
    CHECK(group == 2);
    return hot[block];
  });
  REQUIRE(came);
  CHECK(came->left == 0);
  CHECK(came->came == 5);  // of both sequences: what they share once
  CHECK(came->came_tails == 1);
  CHECK(came->came_full ==
        static_cast<std::uint64_t>(std::count(hot.begin(), hot.end(), true)) - 1);
  CHECK(resident_here(*to, 2) == hot);
  const auto left = from->hold({0, 1}, {});
  REQUIRE(left);
  CHECK(left->left == 5);
  CHECK(left->came == 0);
  CHECK(resident_here(*from, 0) == stays);
  REQUIRE(from->validate());
  REQUIRE(to->validate());
  for (int i = 0; i < 6; ++i) {  // shared pages once; the machine compares each that is read
    CHECK(read(*from, a, {0, 1, 2}).reads == 10);
    CHECK(read(*to, b, {0, 1, 2}).reads == 10);
  }
  // And back again.
  REQUIRE(from->hold({0, 1, 2}, kEverything));
  REQUIRE(to->hold({3}, {}));
  (void)read(*from, a, {0, 1, 3});
  (void)read(*to, b, {0, 1, 3});
  for (const auto& [r, ids] : {std::pair(from.get(), a), std::pair(to.get(), b)}) {
    for (const SequenceId id : ids) REQUIRE(r->release(id));
    CHECK(r->table().slots(kHbm).used() == 0);
    CHECK(r->table().slots(1).used() == 0);
  }
}

TEST_CASE("every policy goes on when groups come and go") {
  for (const placement::PolicyDescriptor* policy : placement::policies()) {
    if (policy->traits.needs_instance || policy->traits.needs_future) continue;
    INFO(policy->name);
    auto options = four_groups(14, {0, 1});
    options.policy = policy->name;
    if (policy->traits.unlimited) options.tier_pages[kHbm] = 100;
    const auto r = make(options);
    const std::vector<SequenceId> s{start(*r, 22)};
    const std::vector<std::vector<std::uint32_t>> held{{0, 1, 2}, {2}, {0, 1, 2, 3}, {3}, {0, 3}};
    for (std::size_t i = 0; i < 15; ++i) {
      (void)read(*r, s, {0, static_cast<std::uint32_t>(1 + i % 3), 4});
      if (i % 3 == 2) REQUIRE(r->hold(held[i / 3], kEverything));
    }
  }
}

TEST_CASE("what cannot be held is refused, and nothing has changed") {
  const auto r = make(four_groups(3, {1}));
  const SequenceId s = start(*r, 9);
  const std::vector<std::vector<std::uint32_t>> wrong{{}, {4}, {1, 1}, {2, 1}, {0, 1, 2, 3}};
  for (const auto& groups : wrong) CHECK_FALSE(r->hold(groups, {}));
  CHECK(r->hold({0, 1, 2, 3}, {}).error().reason == Reason::kOverBudget);
  auto crowded = four_groups(8, {1});
  crowded.tier_pages[1] = 3;
  const auto full = make(crowded);
  start(*full, 9);
  CHECK(full->hold({1, 2}, {}).error().reason == Reason::kNoSpace);
  REQUIRE(r->begin_step({&s, 1}));
  CHECK_FALSE(r->hold({2}, {}));
  r->abandon_step();
  REQUIRE(r->suspend(s));
  CHECK_FALSE(r->hold({2}, {}));
  REQUIRE(r->resume(s));
  CHECK(r->groups().size() == 1);
  CHECK(r->groups()[0] == 1);
  CHECK(full->groups()[0] == 1);
  CHECK(r->hold({2}, {}));
}

TEST_CASE("a step without a token reads whole pages and leaves sequences as they are") {
  const auto r = make(four_groups(100, {}));
  const std::vector<SequenceId> s{start(*r, 12)};
  const StepReport report = read(*r, s, {0, 2}, Growth::kNone);
  CHECK(report.reads == 8);
  CHECK(report.tail_reads == 0);
  CHECK(report.total == Approx(4 * 8 * 4 / 1000.0));  // 4 operations a token: more than its bytes
  CHECK(r->tokens(s.front()) == 12U);
  CHECK(r->table().live_pages() == 12);
  REQUIRE(r->begin_step(s, Growth::kNone));
  r->abandon_step();
  CHECK(r->tokens(s.front()) == 12U);
  // The control: with a token a new page is opened.
  CHECK(read(*r, s, {0, 2}).reads == 12);
  CHECK(r->table().live_pages() == 16);
  CHECK_FALSE(r->begin_step(s, Growth::kNone));  // 13 tokens
  const std::vector<SequenceId> empty{start(*r, 0)};
  CHECK_FALSE(r->begin_step(empty, Growth::kNone));
}
