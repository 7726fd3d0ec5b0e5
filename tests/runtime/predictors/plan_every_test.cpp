// SPDX-License-Identifier: Apache-2.0
// Layers that are planned in turn, on a recorded trace: what is looked at when, and what it costs.
#include <map>

#include <catch2/catch.hpp>

#include "tests/runtime/predictors/recorded_cut.hpp"
#include "tests/support/spoilt_predictor.hpp"

namespace lehr::runtime {
namespace {

constexpr std::uint32_t kSteps = 40;

/// `table`, and what it was asked.
class Counting final : public predictors::Predictor {
 public:
  Counting() {
    auto made = predictors::make_predictor("table", {});
    REQUIRE(made);
    inner_ = std::move(*made);
  }
  Status begin(const predictors::PredictorContext& context) override {
    return inner_->begin(context);
  }
  void add_pages(std::span<const PageId> pages, const PageColumns& columns) override {
    for (const PageId p : pages) ++told[p];
    inner_->add_pages(pages, columns);
  }
  void remove_pages(std::span<const PageId> pages) override { inner_->remove_pages(pages); }
  void observe(const LayerView& view) override {
    for (const PageId p : view.filled) ++told[p];
    observed[view.layer].push_back(view.step);
    inner_->observe(view);
  }
  std::span<const float> odds(std::uint32_t step) const override { return inner_->odds(step); }
  predictors::Work work() const override { return inner_->work(); }

  std::map<std::uint32_t, std::vector<Step>> observed;  ///< steps, by layer
  std::map<PageId, std::uint32_t> told;                 ///< how often, by page

 private:
  std::unique_ptr<predictors::Predictor> inner_;
};

StepReport play(const test::RecordedCut& cut, const char* policy, std::uint32_t every,
                std::shared_ptr<predictors::Predictor> own = nullptr) {
  ReplayOptions options = cut.options();
  options.runtime.policy = policy;
  options.runtime.predictor = "table";
  options.runtime.plan_every = every;
  options.runtime.own_predictor = std::move(own);
  const auto result = cut.replayed(options);
  REQUIRE(result);
  return result->all;
}

TEST_CASE("each layer is looked at in its first step and then in every fourth, layers in turn") {
  const test::RecordedCut cut(0.2, kSteps);
  const auto every_step = std::make_shared<Counting>(), in_turn = std::make_shared<Counting>();
  const StepReport all = play(cut, "table", 1, every_step);
  const StepReport some = play(cut, "table", 4, in_turn);
  CHECK(some.reads == all.reads);
  for (const auto& [layer, steps] : every_step->observed) {
    CHECK(steps.size() == kSteps);
    std::vector<Step> expected{0};
    for (Step s = 1; s < kSteps; ++s) {
      if ((s + layer) % 4 == 0) expected.push_back(s);
    }
    CHECK(in_turn->observed[layer] == expected);
  }
  // Pages that fill up between two plans are told of all the same, and once.
  CHECK(in_turn->told == every_step->told);
  for (const auto& [page, times] : in_turn->told) CHECK(times == 1);
}

TEST_CASE("planning in turn costs a few hundredths of a step at most") {
  const test::RecordedCut cut(0.2, kSteps);
  for (const char* policy : {"table", "knapsack", "sa"}) {
    CAPTURE(policy);
    const StepReport anew = play(cut, policy, 1);
    const StepReport in_turn = play(cut, policy, 4);
    CHECK(in_turn.total <= 1.06 * anew.total);
    CHECK(in_turn.forced_drops == 0);
  }
}

TEST_CASE("odds that the watch rescales reach pages that came between two plans") {
  const test::RecordedCut cut(0.2, kSteps);
  const StepReport lru = play(cut, "lru", 1);
  for (const std::string& form : lehr::test::poisons()) {
    CAPTURE(form);
    const auto spoilt = std::make_shared<lehr::test::SpoiltPredictor>(lehr::test::poison(form));
    CHECK(play(cut, "table", 4, spoilt).total <= 1.1 * lru.total);
  }
}

TEST_CASE("numbers of steps between plans that make no sense are refused") {
  const test::RecordedCut cut(0.2, 4);
  for (const std::uint32_t every : {0U, kMostPlanEvery + 1}) {
    ReplayOptions options = cut.options();
    options.runtime.policy = "table";
    options.runtime.plan_every = every;
    const auto result = cut.replayed(options);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::kOutOfRange);
  }
}

}  // namespace
}  // namespace lehr::runtime
