// SPDX-License-Identifier: Apache-2.0
// A replay that stops early, as a problem of placement: nothing of the steps after its end is in
// it.
#include <catch2/catch.hpp>

#include "placement/bounds.hpp"
#include "tests/runtime/predictors/recorded_cut.hpp"

using namespace lehr;
using namespace lehr::runtime;
using lehr::runtime::test::RecordedCut;

TEST_CASE("a replay of few steps is the beginning of the whole one") {
  constexpr std::uint32_t kSteps = 7;
  const RecordedCut cut(0.25, 0);
  ReplayOptions options = cut.options();
  options.runtime.policy = "lru";
  const std::uint32_t all = cut.workload().steps();
  REQUIRE(all > kSteps);
  const auto whole = replay_instance(cut.workload(), options);
  options.max_steps = kSteps;
  const auto few = replay_instance(cut.workload(), options);
  REQUIRE(whole);
  REQUIRE(few);
  const std::size_t ticks = std::size_t{kSteps} * few->layers;
  REQUIRE(few->visit_end.size() == ticks);
  CHECK(whole->visit_end.size() == std::size_t{all} * few->layers);
  CHECK(std::equal(few->visit_end.begin(), few->visit_end.end(), whole->visit_end.begin()));
  CHECK(std::equal(few->visit.begin(), few->visit.end(), whole->visit.begin()));
  CHECK(std::equal(few->fixed_hbm.begin(), few->fixed_hbm.end(), whole->fixed_hbm.begin()));
  CHECK(std::equal(few->pinned.begin(), few->pinned.end(), whole->pinned.begin()));
  // Pages: those of the prompt, and those that became full in these steps.
  const auto& meta = cut.trace().meta();
  const std::uint32_t groups = cut.trace().geometry().groups();
  const std::uint32_t full = (meta.prompt_tokens + kSteps) / meta.page_tokens;
  CHECK(few->birth.size() == std::size_t{groups} * full);
  // The sequence goes on after the end: none of its pages dies.
  CHECK(std::all_of(few->death.begin(), few->death.end(), [](Tick t) { return t == kNever; }));

  // Counted by the step loop: every read but those of tails is a visit.
  const auto replayed = cut.replayed(options);
  REQUIRE(replayed);
  CHECK(replayed->steps == kSteps);
  CHECK(few->visit.size() == replayed->all.reads - replayed->all.tail_reads);
  CHECK(few->visit.size() < whole->visit.size());
  // And no plan of these steps is faster than what is bounded.
  const auto bound = placement::lower_bound(*few, {});
  REQUIRE(bound);
  CHECK(bound->best.total <= replayed->all.total * (1 + 1e-9));
}

TEST_CASE("more steps than there are, and none said, are all of them") {
  const RecordedCut cut(0.25, 0);
  ReplayOptions options = cut.options();
  const auto whole = replay_instance(cut.workload(), options);
  options.max_steps = cut.workload().steps() + 5;
  const auto more = replay_instance(cut.workload(), options);
  REQUIRE(whole);
  REQUIRE(more);
  CHECK(more->visit == whole->visit);
  CHECK(more->death == whole->death);
}
