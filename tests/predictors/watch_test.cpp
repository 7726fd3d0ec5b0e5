// SPDX-License-Identifier: Apache-2.0
// A predictor that is wrong, constant, poisoned or no numbers at all must not do harm.
#include "predictors/watch.hpp"

#include <cmath>

#include <catch2/catch.hpp>

#include "tests/predictors/scene.hpp"
#include "tests/support/policy_world.hpp"
#include "tests/support/spoilt_predictor.hpp"

namespace lehr::predictors {
namespace {

test::WorldShape tight() {
  test::WorldShape s;
  s.sequences = 2;
  s.layers = 6;
  s.kv_heads = 2;
  s.prompt_pages = 40;
  s.page_tokens = 16;
  s.steps = 200;
  s.selected = 8;
  s.capacity = 260;
  s.seed = 3;
  return s;
}

test::WorldRun play_spoilt(const test::PolicyWorld& world, const test::Spoil& change) {
  test::SpoiltPredictor predictor(change);
  auto policy = placement::make_policy("table", {});
  REQUIRE(policy);
  auto run = world.play(**policy, &predictor);
  CHECK(run.broken == "");
  return run;
}

TEST_CASE("poisoned, constant and numberless predictors cost no more than lru and a hundredth") {
  const test::PolicyWorld world(tight());
  const auto lru = world.play("lru");
  const std::string form = GENERATE(from_range(test::poisons()));
  CAPTURE(form);
  const auto run = play_spoilt(world, test::poison(form));
  CHECK(run.layers_without_odds > 0);
  CHECK(static_cast<double>(run.misses) <= 1.01 * static_cast<double>(lru.misses));
}

TEST_CASE("control: an honest predictor is trusted, and beats lru") {
  const test::PolicyWorld world(tight());
  const auto run = play_spoilt(world, [](float p, PageId) { return p; });
  CHECK(run.layers_without_odds < 6 * 20);
  CHECK(static_cast<double>(run.misses) < 0.99 * static_cast<double>(world.play("lru").misses));
}

TEST_CASE("where every page is read in every step nearly certain odds are trusted") {
  test::WorldShape dense = tight();
  dense.selected = 1000;  // all there are
  const test::PolicyWorld world(dense);
  const std::uint32_t layers = dense.layers * dense.steps;
  const auto honest = play_spoilt(world, [](float p, PageId) { return p; });
  CHECK(honest.layers_without_odds < layers / 10);
  // Control: of an eighth of the pages the opposite is said, which is a wrong prediction.
  const auto lies = play_spoilt(world, [](float p, PageId page) { return page % 8 == 0 ? 0 : p; });
  CHECK(honest.layers_paused < layers / 10);
  CHECK(lies.layers_paused >= honest.layers_paused + 6 * 8);
}

TEST_CASE("odds that are too high by more than the limit are rescaled, and a pause is told") {
  const test::PolicyWorld world(tight());
  const auto honest = play_spoilt(world, [](float p, PageId) { return p; });
  const auto high = play_spoilt(world, [](float p, PageId) {
    return 3 * p / (3 * p + 1 - p);  // the odds threefold, in their order
  });
  CHECK(high.layers_paused >= 6 * 8);
  CHECK(high.layers_paused < 6 * 100);  // the rescaled odds are right: the pause ends
  CHECK(static_cast<double>(high.misses) < 1.15 * static_cast<double>(honest.misses));  // the pause
}

TEST_CASE("odds over a window are the mean of its steps, for the pages of the layer") {
  test::Scene scene(1);
  const auto predictor = scene.make("table", 3);
  const std::vector<PageId> pages = test::blocks_from(0, 10);
  predictor->add_pages(pages, {});
  Watch watch;
  watch.add_pages(pages);
  for (std::uint32_t t = 0; t < 12; ++t) {
    const LayerView& view = scene.layer(t, 0, {{test::blocks_from(0, 11), {0, t % 2 + 1, 5}}});
    watch.compare(view, *predictor);
    predictor->observe(view);
    Forecast f = watch.tell(view, *predictor, 3);
    REQUIRE(f.horizon == 3);
    f.window = 1;
    CHECK(watch.over_window(f).data() == f.odds[0].data());
    for (const std::uint32_t window : {2U, 3U, 5U}) {  // 5: as far as the horizon goes
      f.window = window;
      const auto mean = watch.over_window(f);
      for (const PageId p : pages) {
        float sum = f.odds[0][p] + f.odds[1][p] + (window > 2 ? f.odds[2][p] : 0.0F);
        CHECK(mean[p] == Approx(sum / static_cast<float>(std::min(window, 3U))));
      }
    }
  }
  Forecast none;
  none.window = 3;
  CHECK(watch.over_window(none).empty());
}

TEST_CASE("the prefetch window is 2 to 5 steps, and shortest where nothing is known") {
  CHECK(prefetch_window(1e-3, 1e-6, 500, 0.9F) == 2);   // half a step's worth
  CHECK(prefetch_window(1e-3, 1e-6, 2500, 0.9F) == 4);  // two and a half: three, and one to spare
  CHECK(prefetch_window(1e-3, 1e-6, 1e9, 0.9F) == 5);
  CHECK(prefetch_window(1e-3, 1e-6, 2500, 0.3F) == 2);  // not to be relied on
  CHECK(prefetch_window(0, 1e-6, 2500, 0.9F) == 2);
  CHECK(prefetch_window(std::nan(""), 1e-6, 2500, 0.9F) == 2);
}

}  // namespace
}  // namespace lehr::predictors
