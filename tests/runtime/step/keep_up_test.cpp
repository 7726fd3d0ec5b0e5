// SPDX-License-Identifier: Apache-2.0
// Sequences whose pages all stay above the tier below home, for attention that may read any.
#include "kernels/base/rng.hpp"
#include "placement/policy.hpp"
#include "tests/runtime/step/tiny_runtime.hpp"
#include "tests/support/make_room.hpp"

using namespace lehr;
using namespace lehr::runtime;
using namespace lehr::test;

namespace {

constexpr TierId kHome = 1, kFile = 2;

RuntimeOptions three_tiers(std::uint32_t hbm, std::uint32_t home, std::uint32_t file,
                           const char* policy = "lru") {
  RuntimeOptions o = small(hbm, policy);
  o.platform = tiny_platform(true);
  o.tier_pages = {hbm, home, file};
  return o;
}

/// Pages of the sequence whose only copy, HBM aside, is below home.
std::size_t down(const Runtime& r, SequenceId id) {
  std::size_t count = 0;
  for (const PageId page : r.blocks(id)) {
    const Residency at = r.table().residency[page];
    count += resident(at, kFile) && !resident(at, kHome) ? 1 : 0;
  }
  return count;
}

/// Wants every page in HBM, whoever reads it, which must have room for all; its promotions take
/// longer than a step.
class PromotesAll final : public placement::Policy {
 public:
  void begin(const placement::PolicyContext&) override {}
  void add_pages(std::span<const PageId>, std::span<const Tick>, const PageColumns&) override {}
  void remove_pages(std::span<const PageId>) override {}
  void decide(const LayerView& view, LayerPlan& plan) override {
    make_room(view, view.must_free, plan);
    for (PageId p = 0; p < view.pages.residency.size(); ++p) {
      if (view.pages.residency[p] != 0 && !view.pages.in_hbm(p)) plan.promote.push_back({p, false});
    }
  }
};

/// Promotions under way, but those of these sequences.
std::size_t in_flight(const Runtime& r, const std::vector<SequenceId>& but) {
  std::size_t count = 0;
  for (PageId page = 0; page < r.table().rows(); ++page)
    count += (r.table().flags[page] & kInFlight) != 0 ? 1 : 0;
  for (const SequenceId id : but) {
    for (const PageId page : r.blocks(id))
      count -= (r.table().flags[page] & kInFlight) != 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("keep_up brings a sequence up, and the next one in its place") {
  const auto r = make(three_tiers(3, 6, 20));
  const SequenceId a = start(*r, 20), b = start(*r, 20);  // five full pages each
  REQUIRE(down(*r, a) == 0);
  REQUIRE(down(*r, b) == 4);  // home had one place left
  REQUIRE(r->keep_up({&b, 1}));
  CHECK(down(*r, b) == 0);
  CHECK(down(*r, a) == 4);
  CHECK(r->totals().link[2].count == 4);  // up
  CHECK(r->totals().link[3].count == 4);  // down
  REQUIRE(r->keep_up({&a, 1}));
  CHECK(down(*r, a) == 0);
  CHECK(down(*r, b) == 4);
  CHECK(r->totals().link[2].count == 8);
  CHECK(r->totals().link[3].count == 5);  // one page of b had not been down before
  CHECK(r->validate());
  REQUIRE(r->keep_up({&a, 1}));
  CHECK(r->totals().link[2].count == 8);  // nothing left to do
}

TEST_CASE("what is kept does not move down for pages that come, what is not kept does") {
  const bool kept = GENERATE(true, false);
  const auto r = make(three_tiers(3, 6, 20));
  const SequenceId a = start(*r, 20);
  const SequenceId b = start(*r, 0);
  if (kept) REQUIRE(r->keep_up(std::vector<SequenceId>{a, b}));
  // b writes two pages: there is one place, and the oldest page of all is a's.
  const Status grown = r->append(b, 8);
  if (kept) {
    REQUIRE_FALSE(grown);
    CHECK(grown.error().code == Code::kRefused);
    CHECK(r->tokens(b) == 0U);
    CHECK(r->append(b, 4));
    CHECK(down(*r, a) + down(*r, b) == 0);
  } else {
    REQUIRE(grown);
    CHECK(down(*r, a) + down(*r, b) == 1);
  }
  CHECK(r->validate());
}

TEST_CASE("keep_up refuses what the home tier cannot hold, and nothing is lost") {
  const auto r = make(three_tiers(3, 6, 20));
  const SequenceId a = start(*r, 20), b = start(*r, 20);
  const std::vector<SequenceId> both{a, b};
  const Status refused = r->keep_up(both);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kRefused);
  CHECK(r->validate());
  const SequenceId none = 9;
  CHECK(r->keep_up({&none, 1}).error().code == Code::kNotFound);
  for (const SequenceId id : both) {
    REQUIRE(r->keep_up({&id, 1}));
    step(*r, id, {0, 1, 2, 3, 4});
    CHECK(down(*r, id) == 0);
  }
  REQUIRE(r->begin_step({&a, 1}));
  CHECK(r->keep_up({&a, 1}).error().code == Code::kInvalid);
}

TEST_CASE("keep_up refuses where the file is full") {
  const auto r = make(three_tiers(3, 6, 4));
  const SequenceId a = start(*r, 20), b = start(*r, 20);
  const Status refused = r->keep_up({&b, 1});  // a's pages have nowhere to go
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kLowerTierBusy);
  CHECK(r->validate());
  CHECK(r->keep_up({&a, 1}));
}

TEST_CASE("where the file is full, pages that have a copy in it can still leave") {
  const auto r = make(three_tiers(20, 6, 5));
  const SequenceId a = start(*r, 20), b = start(*r, 20), c = start(*r, 2), d = start(*r, 2);
  CHECK(r->keep_up({&b, 1}).error().reason == Reason::kLowerTierBusy);
  CHECK(down(*r, a) == 1);  // there was room for one
  REQUIRE(r->keep_up({&a, 1}));
  REQUIRE(r->table().slots(kHome).available() == 0);
  REQUIRE(r->table().slots(kFile).available() == 0);
  REQUIRE(r->keep_up({&d, 1}));
  REQUIRE(r->suspend(c));  // its tail in the place of the page of a's that came up and has a copy
  CHECK(down(*r, a) == 1);
  CHECK(r->totals().link[3].count == 1);
  CHECK(r->suspend(d).error().reason == Reason::kLowerTierBusy);
  CHECK(r->validate());
}

TEST_CASE("a tail that has to go home finds room where there is a tier below") {
  const std::uint32_t file = GENERATE(20U, 0U);
  auto options = three_tiers(3, 5, file);
  if (file == 0) {
    options.platform = tiny_platform();
    options.tier_pages.pop_back();
  }
  const auto r = make(options);
  const SequenceId a = start(*r, 20), b = start(*r, 2);  // home is full, b has a tail
  const Status slept = r->suspend(b);
  if (file == 0) {
    REQUIRE_FALSE(slept);
    CHECK(slept.error().reason == Reason::kLowerTierBusy);
    return;
  }
  REQUIRE(slept);
  CHECK(down(*r, a) == 1);
  REQUIRE(r->resume(b));
  step(*r, b, {});
  CHECK(r->validate());
}

TEST_CASE("a kept sequence that fills the home tier can be suspended: its own pages make room") {
  const auto r = make(three_tiers(3, 5, 20));
  const SequenceId a = start(*r, 22);
  REQUIRE(r->keep_up({&a, 1}));
  REQUIRE(r->suspend(a));
  CHECK(down(*r, a) == 1);
  CHECK(r->validate());
}

TEST_CASE("pages of sequences that are not kept are not on their way to HBM") {
  auto options = three_tiers(24, 12, 40);
  options.own_policy = std::make_shared<PromotesAll>();
  options.cold = true;
  const auto r = make(options);
  const SequenceId a = start(*r, 21), b = start(*r, 21);
  step(*r, a, {0});  // no sequence is kept: pages of both
  CHECK(in_flight(*r, {a}) > 0);
  REQUIRE(r->keep_up({&a, 1}));
  CHECK(in_flight(*r, {}) > 0);
  CHECK(in_flight(*r, {a}) == 0);  // b's were given up
  const auto report = step(*r, a, {0});
  CHECK(report.refused_promotions > 0);  // and do not start again
  CHECK(in_flight(*r, {a}) == 0);
  REQUIRE(r->keep_up({&b, 1}));
  CHECK(in_flight(*r, {b}) == 0);
}

TEST_CASE("sequences that take turns: none of the batch's pages is ever down") {
  const std::string policy = GENERATE("lru", "lru-promote", "table", "sa", "lfu-importance");
  CAPTURE(policy);
  const auto r = make(three_tiers(6, 30, 400, policy.c_str()));
  Rng random(7);
  std::vector<SequenceId> ids;
  for (std::uint32_t n = 0; n < 4; ++n) ids.push_back(start(*r, 20 + 8 * n));
  for (std::uint32_t turn = 0; turn < 200; ++turn) {
    CAPTURE(turn);
    std::vector<SequenceId> batch{ids[random.below(4)]};
    if (const SequenceId other = ids[random.below(4)]; other != batch[0]) batch.push_back(other);
    for (const SequenceId id : batch) {
      if (r->tokens(id) > 52U) REQUIRE(r->truncate(id, 20));
    }
    REQUIRE(r->keep_up(batch));
    if (random.below(4) == 0) REQUIRE(r->append(batch[0], 1 + random.below(9)));
    REQUIRE(r->begin_step(batch));
    std::vector<GroupSelection> groups;
    std::vector<std::vector<std::uint32_t>> pages(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto all = static_cast<std::uint32_t>(r->blocks(batch[i]).size());
      for (std::uint32_t p = 0; p + 1 < all; ++p)
        if (random.below(2) == 0) pages[i].push_back(p);
      GroupSelection g;
      g.sequence = batch[i];
      g.pages = pages[i];
      groups.push_back(g);
    }
    const Status ran = r->run_layer(0, groups);
    INFO((ran ? std::string() : ran.error().what));
    REQUIRE(ran);
    REQUIRE(r->end_step());
    for (const SequenceId id : batch) CHECK(down(*r, id) == 0);
    REQUIRE(r->validate());
  }
  CHECK(r->totals().link[2].count > 100);
}
