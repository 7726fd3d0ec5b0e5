// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/step/tiny_runtime.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

TEST_CASE("a replay starts with the latest prompt pages in HBM") {
  // 3 full pages and a tail of one token; HBM takes the tail and the two latest full pages.
  const auto r = make(small(3));
  start(*r, 13);
  const PageTable& t = r->table();
  CHECK(t.slots(kHbm).used() == 3);
  CHECK_FALSE(resident(t.residency[0], kHbm));
  CHECK(resident(t.residency[1], kHbm));
  CHECK(resident(t.residency[2], kHbm));
  CHECK(resident(t.residency[3], kHbm));
  CHECK(t.slots(1).used() == 3);  // full pages are at home, the tail is not
}

TEST_CASE("an empty start leaves HBM empty") {
  auto options = small(3);
  options.cold = true;
  const auto r = make(options);
  start(*r, 13);
  CHECK(r->table().slots(kHbm).used() == 0);
}

TEST_CASE("each term of a step is what the model says") {
  auto options = small(3);
  options.weights_bytes = 100;
  const auto r = make(options);
  const SequenceId s = start(*r, 13);
  // Reads pages 0 (host) and 2 (HBM); the tail has 2 tokens after the append. Page 0 replaces
  // page 1. HBM: weights 100 + appended 2 + tail 2 x 2 + page 2 8 + install 8 = 122; up: 8; no
  // arithmetic to speak of.
  const StepReport report = step(*r, s, {0, 2});
  CHECK(report.time.hbm == Approx(0.122));
  CHECK(report.time.link[0] == Approx(0.08));
  CHECK(report.time.compute == Approx(4.0 * (2 + 8) / 1000));
  CHECK(report.total == Approx(0.122));
  CHECK(report.exposed == 0);
  CHECK(report.reads == 3);
  CHECK(report.hits == 2);
  CHECK(report.misses == 1);
  CHECK(report.installed == 1);
  CHECK(report.dropped == 1);
  CHECK(report.link[0].bytes == 8);
  CHECK(report.link[1].bytes == 0);  // a clean demotion costs nothing
  CHECK(resident(r->table().residency[0], kHbm));
  CHECK_FALSE(resident(r->table().residency[1], kHbm));
}

TEST_CASE("exposed time is what the link needs beyond HBM") {
  const auto r = make(small(1));  // only the tail fits: everything is read in place
  const SequenceId s = start(*r, 13);
  // HBM: appended 2 + tail 4 = 6 bytes; up: 3 pages, 24 bytes = 0.24 s; arithmetic 4 x 14 = 0.056
  // s.
  const StepReport report = step(*r, s, {0, 1, 2});
  CHECK(report.total == Approx(0.24));
  CHECK(report.exposed == Approx(0.24 - 0.056));
  CHECK(report.installed == 0);
}

TEST_CASE("a page that became full is written home once") {
  const auto r = make(small(2));
  const SequenceId s = start(*r, 3);
  StepReport report = step(*r, s, {});
  CHECK(report.written_back == 1);
  CHECK(report.link[1].bytes == 8);
  // HBM: appended 2 + tail 8 + read for the write-back 8.
  CHECK(report.time.hbm == Approx(0.018));
  for (int i = 0; i < 3; ++i) CHECK(step(*r, s, {0}).written_back == 0);
  CHECK(step(*r, s, {0}).written_back == 1);  // page 1, in its turn
  CHECK(r->table().slots(1).used() == 2);
}

TEST_CASE("HBM of exactly the tails works, and the tail moves on") {
  const auto r = make(small(1));
  const SequenceId s = start(*r, 4);
  for (int i = 0; i < 9; ++i) {
    const StepReport report = step(*r, s, {0});
    CHECK(report.misses == 1);
  }
  CHECK(r->table().slots(kHbm).used() == 1);
}

TEST_CASE("rows of sequences that ended are used again, each by one sequence") {
  // 64 blocks are a chunk; one fewer, exactly, one more.
  for (const std::uint64_t blocks : {63, 64, 65}) {
    CAPTURE(blocks);
    const auto r = make(small(8));
    std::uint32_t rows = 0;
    for (int round = 0; round < 3; ++round) {
      const SequenceId first = start(*r, (blocks - 1) * 4 + 1);
      REQUIRE(r->release(first));
      const SequenceId second = start(*r, 1);
      const SequenceId third = start(*r, 1);
      CHECK(r->table().live_pages() == 2);
      CHECK(r->validate());  // had they been given one row, a slot would be lost
      REQUIRE(r->release(second));
      REQUIRE(r->release(third));
      if (round == 0) rows = r->table().rows();
      CHECK(r->table().rows() == rows);
    }
  }
}

TEST_CASE("forks share pages and write into tails of their own") {
  const auto r = make(small(8));
  const SequenceId a = start(*r, 10);
  const std::uint32_t before = r->table().live_pages();
  const auto b = r->fork(a);
  REQUIRE(b);
  CHECK(r->table().live_pages() == before);  // nothing copied
  const std::vector<SequenceId> both{a, *b};
  REQUIRE(r->begin_step(both));
  CHECK(r->table().live_pages() == before + 1);  // one of the two got a tail of its own
  const std::vector<std::uint32_t> pages{0, 1};
  std::vector<GroupSelection> groups(2);
  groups[0].sequence = a;
  groups[0].pages = pages;
  groups[1].sequence = *b;
  groups[1].pages = pages;
  REQUIRE(r->run_layer(0, groups));
  const auto report = r->end_step();
  REQUIRE(report);
  CHECK(report->reads == 4);  // shared pages are read once: two of them, and two tails
  REQUIRE(r->release(a));
  CHECK(r->validate());
  CHECK(step(*r, *b, {0, 1}).reads == 3);
  REQUIRE(r->release(*b));
  CHECK(r->table().live_pages() == 0);
  CHECK(r->table().slots(kHbm).used() == 0);
  CHECK(r->table().slots(1).used() == 0);
}

TEST_CASE("a suspended sequence leaves HBM and comes back intact") {
  const auto r = make(small(8));
  const SequenceId s = start(*r, 10);
  step(*r, s, {0, 1});
  REQUIRE(r->suspend(s));
  CHECK(r->table().slots(kHbm).used() == 0);
  CHECK_FALSE(r->begin_step({&s, 1}));
  REQUIRE(r->resume(s));
  const StepReport report = step(*r, s, {0, 1});  // the machine checks contents: tail included
  CHECK(report.misses == 2);
  CHECK(report.link[0].bytes == 8 * 3);  // two pages and the tail
}

TEST_CASE("a suspended sequence is forked as it is, and the fork goes on") {
  const auto r = make(small(8));
  const SequenceId a = start(*r, 10);
  step(*r, a, {0, 1});
  REQUIRE(r->suspend(a));
  REQUIRE(r->suspend(a));  // once more changes nothing
  const auto b = r->fork(a);
  REQUIRE(b);
  CHECK(step(*r, *b, {0, 1}).reads == 3);  // its own copy of the tail came from home
  CHECK(*r->tokens(*b) == 12);
  CHECK_FALSE(r->begin_step({&a, 1}));
  REQUIRE(r->resume(a));
  REQUIRE(r->resume(a));
  CHECK(step(*r, a, {0, 1}).reads == 3);
  CHECK(*r->tokens(a) == 12);
}

TEST_CASE("a chunk of tokens is appended between steps") {
  const auto r = make(small(8));
  const SequenceId s = start(*r, 6);  // one full page, a tail of two tokens
  step(*r, s, {0});                   // a tail of three
  const Bytes down = r->totals().link[1].bytes;
  REQUIRE(r->append(s, 6));  // 13 tokens: pages 1 and 2 are full, a tail of one
  CHECK(*r->tokens(s) == 13);
  CHECK(r->totals().link[1].bytes == down + 2 * 8);
  CHECK(r->table().slots(1).used() == 3);
  CHECK(r->validate());
  const StepReport report = step(*r, s, {0, 1, 2});  // contents are checked
  CHECK(report.reads == 4);
  CHECK(report.misses == 0);
  REQUIRE(r->append(s, 1));  // 15: within the tail
  step(*r, s, {0, 1, 2});    // 16: it is full now
  CHECK(r->table().slots(1).used() == 4);
  CHECK_FALSE(r->append(s, 4 * 97));  // home has 100 pages
  CHECK(*r->tokens(s) == 16);
  CHECK(r->validate());
}

TEST_CASE("a fork that is appended to leaves its parent's tail alone") {
  const auto r = make(small(8));
  const SequenceId a = start(*r, 6);
  const auto b = r->fork(a);
  REQUIRE(b);
  REQUIRE(r->append(*b, 3));
  CHECK(*r->tokens(a) == 6);
  step(*r, a, {0});
  step(*r, *b, {0, 1});
  REQUIRE(r->release(a));
  step(*r, *b, {0, 1});
}

TEST_CASE("pages below the home tier are waited for, and come up once") {
  auto options = small(1);
  options.platform = test::tiny_platform(true);
  options.tier_pages = {1, 2, 10};
  const auto r = make(options);
  const SequenceId s = start(*r, 13);  // pages 2 and 1 at home, page 0 on NVMe
  CHECK(r->table().slots(1).used() == 2);
  CHECK(r->table().slots(2).used() == 1);
  // Page 0: a place at home first (page 1 or 2 goes down: 8 bytes at 5 B/s, beside the layer), then
  // 8 bytes at 10 B/s that the layer waits for.
  const StepReport report = step(*r, s, {0});
  CHECK(report.staged == 1);
  CHECK(report.time.stall == Approx(0.8));
  CHECK(report.link[3].bytes == 8);
  CHECK(report.total == Approx(1.6 + 0.8));
  CHECK(step(*r, s, {0}).staged == 0);
}

TEST_CASE("a suspended tail that went down to NVMe comes back, and leaves no old copy there") {
  auto options = small(2);
  options.platform = test::tiny_platform(true);
  options.tier_pages = {2, 1, 10};
  const auto r = make(options);
  const SequenceId s = start(*r, 2);
  step(*r, s, {});
  REQUIRE(r->suspend(s));  // its tail takes the one page at home
  const SequenceId other = start(*r, 3);
  step(*r, other, {});  // full: goes home, and the tail goes down
  CHECK(r->table().slots(2).used() == 1);
  REQUIRE(r->resume(s));
  // Up to home (8 bytes at 10 B/s that the layer waits for; the other page makes way), then to HBM.
  StepReport report = step(*r, s, {});
  CHECK(report.staged == 1);
  CHECK(report.time.stall == Approx(0.8));
  CHECK(report.link[0].bytes == 8);
  CHECK(report.link[3].bytes == 8);
  CHECK(report.written_back == 1);         // it is full now
  CHECK(r->table().slots(2).used() == 1);  // the other's page alone
  // HBM holds the two new tails: each reads its page at home, where the other's makes way for it.
  for (int turn = 0; turn < 2; ++turn) {
    for (const SequenceId id : {other, s}) step(*r, id, {0});  // the machine checks contents
  }
  CHECK(r->table().slots(2).used() == 2);
}

TEST_CASE("a resumed tail at home stays there while its layer brings other pages up") {
  auto options = small(8);
  options.platform = test::tiny_platform(true);
  options.tier_pages = {8, 2, 10};
  const auto r = make(options);
  const SequenceId s = start(*r, 6);  // page 0 and a tail of two tokens
  step(*r, s, {});
  REQUIRE(r->suspend(s));  // home is full
  const SequenceId other = start(*r, 3);
  step(*r, other, {});  // full: page 0, the oldest at home, goes down
  REQUIRE(r->resume(s));
  const PageId tail = r->blocks(s)[1];
  REQUIRE(resident(r->table().residency[tail], 1));
  // Page 0 comes up. The hand is at the tail, which this layer needs: the other page makes way.
  const StepReport report = step(*r, s, {0});
  CHECK(report.staged == 1);
  CHECK(report.link[0].bytes == 2 * 8);  // page 0 and the tail
  CHECK_FALSE(resident(r->table().residency[tail], 2));
  CHECK(step(*r, other, {0}).reads == 2);
  CHECK(step(*r, s, {0, 1}).reads == 3);
}

TEST_CASE("a full page that its policy was not told of yet makes room without it") {
  // HBM holds the two tails. Both fill in the first step; in the second, layer 0 reads its own, and
  // only layer 1's, of which the policy hears when that layer comes, can go for the new tail.
  auto options = small(2, "static");
  options.geometry.layers = 2;
  const auto r = make(options);
  const SequenceId s = start(*r, 7);
  GroupSelection g;
  g.sequence = s;
  const std::vector<std::uint32_t> full{1};
  for (int step = 0; step < 2; ++step) {
    REQUIRE(r->begin_step({&s, 1}));
    g.pages = step == 1 ? std::span<const std::uint32_t>(full) : std::span<const std::uint32_t>();
    REQUIRE(r->run_layer(0, {&g, 1}));
    REQUIRE(r->run_layer(1, {}));
    const auto report = r->end_step();
    REQUIRE(report);
    CHECK(report->forced_drops == (step == 1 ? 1U : 0U));
    CHECK(r->validate());
  }
}
