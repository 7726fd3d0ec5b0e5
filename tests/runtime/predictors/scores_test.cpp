// SPDX-License-Identifier: Apache-2.0
// Scores of importance in the step loop: who computes them, what they say, who reads them.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "runtime/config/profile.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/predictor_weights.hpp"
#include "runtime/replay/replay.hpp"
#include "runtime/replay/saliency.hpp"
#include "tests/runtime/predictors/recorded_cut.hpp"

namespace lehr::runtime {
namespace {

RuntimeOptions small_options(const ImportanceOptions& importance) {
  RuntimeOptions options;
  auto platform = config::load_profile("gh200");
  REQUIRE(platform);
  options.platform = std::move(*platform);
  options.geometry = {1, 1, 1, 8, 4, 2};
  options.tier_pages.assign(options.platform.tiers.size(), 1U << 12);
  options.policy = "lfu-importance";
  options.importance = importance;
  return options;
}

/// One step of one sequence, in which it reads `pages`, all with the mass code `mass`.
void step(Runtime& runtime, SequenceId id, const std::vector<std::uint32_t>& pages, MassCode mass) {
  const std::vector<MassCode> codes(64, mass);
  REQUIRE(runtime.begin_step({&id, 1}));
  GroupSelection group;
  group.sequence = id;
  group.pages = pages;
  group.mass = group.peak = codes.data();
  REQUIRE(runtime.run_layer(0, {&group, 1}));
  REQUIRE(runtime.end_step());
}

struct Served {
  std::unique_ptr<Runtime> runtime;
  SequenceId id = 0;
};

Served serve(const ImportanceOptions& importance, std::span<const float> saliency = {}) {
  auto made = Runtime::create(small_options(importance), make_sim_machine());
  REQUIRE(made);
  const SequenceInfo info{40, {}, saliency};  // ten pages; an eleventh is opened
  const auto ids = (*made)->create_sequences({&info, 1});
  REQUIRE(ids);
  return {std::move(*made), ids->front()};
}

TEST_CASE("unread pages are ranked by their place, and reads lift what they meet") {
  const Served s = serve({});
  step(*s.runtime, s.id, {}, 0);
  const auto ranks = s.runtime->scores()->ranks();
  for (std::uint32_t i = 0; i < 10; ++i) CHECK(ranks[i] == Approx(i / 9.0).margin(1e-3));
  step(*s.runtime, s.id, {0}, 0);  // all of the mass
  step(*s.runtime, s.id, {0}, 0);
  CHECK(s.runtime->scores()->ranks()[0] == 1);
  CHECK(s.runtime->scores()->ranks()[1] == 0);
}

TEST_CASE("saliency decides between pages of one kind") {
  std::vector<float> saliency(12, 0.5F);
  saliency[4] = 1;
  ImportanceOptions options;
  options.weights = {0.4, 0.0, 0.3};
  const Served s = serve(options, saliency);
  step(*s.runtime, s.id, {}, 0);
  const auto ranks = s.runtime->scores()->ranks();
  CHECK(ranks[4] == 1);
  CHECK(ranks[3] == Approx(4.0 / 9));  // the nine others share theirs
}

TEST_CASE("weights follow what is read, and stay where they do not learn") {
  for (const double rate : {0.0, 0.5}) {
    ImportanceOptions options;
    options.learn = rate;
    auto made = Runtime::create(small_options(options), make_sim_machine());
    REQUIRE(made);
    const SequenceInfo info{1200, {}};
    const auto ids = (*made)->create_sequences({&info, 1});
    REQUIRE(ids);
    std::vector<std::uint32_t> oldest(60);
    for (std::uint32_t i = 0; i < 60; ++i) oldest[i] = i;
    const std::vector<MassCode> codes(512, 60);
    for (int t = 0; t < 200; ++t) {
      const SequenceId id = ids->front();
      REQUIRE((*made)->begin_step({&id, 1}));
      GroupSelection group;
      group.sequence = id;
      group.pages = oldest;
      group.mass = group.peak = codes.data();
      REQUIRE((*made)->run_layer(0, {&group, 1}));
      REQUIRE((*made)->end_step());
    }
    const ImportanceWeights& w = (*made)->scores()->weights();
    CHECK(w.attention + w.position + w.saliency == Approx(1));
    if (rate > 0) {
      CHECK(w.position < 0.15);  // what is new is not read here
      CHECK(w.attention > 0.5);
    } else {
      CHECK(w.position == 0.3);
    }
  }
}

TEST_CASE("forks, suspended and freed sequences: every live page has one rank") {
  Served s = serve({});
  Runtime& runtime = *s.runtime;
  const auto fork = runtime.fork(s.id);
  REQUIRE(fork);
  const std::vector<SequenceId> both{s.id, *fork};
  const auto run = [&](std::span<const SequenceId> batch) {
    REQUIRE(runtime.begin_step(batch));
    std::vector<GroupSelection> groups(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) groups[i].sequence = batch[i];
    REQUIRE(runtime.run_layer(0, groups));
    REQUIRE(runtime.end_step());
  };
  run(both);
  const auto ranks = runtime.scores()->ranks();
  CHECK(ranks[0] == Approx(0).margin(1e-3));
  CHECK(ranks[9] == Approx(1).margin(1e-3));
  REQUIRE(runtime.release(s.id));
  run({&both[1], 1});
  CHECK(runtime.scores()->ranks()[9] == Approx(1).margin(1e-3));
}

class Recorded : public test::RecordedCut {
 public:
  Recorded() : RecordedCut(0.1, 40) {}
  Result<ReplayResult> play(const char* policy, const std::optional<ImportanceOptions>& importance,
                            std::uint32_t window) const {
    ReplayOptions options = this->options();
    options.runtime.predictor_weights = PredictorWeights::shipped().tensors();
    options.runtime.policy = policy;
    options.runtime.importance = importance;
    options.runtime.prefetch_window = window;
    return replayed(options);
  }
};

TEST_CASE("lfu-importance reads the scores where they are made, other policies do not") {
  const Recorded recorded;
  const auto misses = [&](const char* policy, const std::optional<ImportanceOptions>& importance) {
    const auto result = recorded.play(policy, importance, 1);
    REQUIRE(result);
    return result->warm.misses;
  };
  ImportanceOptions newest;  // an absurd one, so that what reads it shows
  newest.weights = {0, 0, 1};
  CHECK(misses("lfu-importance", newest) != misses("lfu-importance", std::nullopt));
  CHECK(misses("table", newest) == misses("table", std::nullopt));
}

TEST_CASE("a window changes what policy table keeps, and is refused past the horizon") {
  const Recorded recorded;
  const auto one = recorded.play("table", std::nullopt, 1);
  const auto three = recorded.play("table", std::nullopt, 3);
  const auto automatic = recorded.play("table", std::nullopt, 0);
  REQUIRE(one);
  REQUIRE(three);
  REQUIRE(automatic);
  CHECK(one->warm.misses != three->warm.misses);
  CHECK(automatic->warm.misses != one->warm.misses);  // two steps at least
  CHECK_FALSE(recorded.play("table", std::nullopt, kMaxHorizon + 1));
  const auto lru = recorded.play("lru", std::nullopt, 3);  // reads no odds
  REQUIRE(lru);
  CHECK(three->warm.total < lru->warm.total);
}

TEST_CASE("saliency of a recorded sequence: digits where tokens are known") {
  const Recorded recorded;
  const auto saliency = saliency_of(recorded.trace());
  const auto& m = recorded.trace().meta();
  if (recorded.trace().parts().tokens.empty()) {
    CHECK(saliency.empty());
    return;
  }
  REQUIRE(saliency.size() == std::size_t{m.layers()} * m.kv_heads * m.pages());
  CHECK(std::all_of(saliency.begin(), saliency.end(),
                    [](float x) { return x == 0.5F || x == 0.75F; }));
}

}  // namespace
}  // namespace lehr::runtime
