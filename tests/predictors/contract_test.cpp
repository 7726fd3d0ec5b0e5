// SPDX-License-Identifier: Apache-2.0
// Every registered predictor keeps the contract of Predictor, in the worlds that policies are
// tested in.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include <catch2/catch.hpp>

#include "predictors/predictor.hpp"
#include "tests/support/policy_world.hpp"
#include "tests/support/some_weights.hpp"

namespace lehr::predictors {
namespace {

using test::PolicyWorld;
using test::WorldShape;

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto* d : models()) out.emplace_back(d->name);
  return out;
}

WorldShape small() {
  WorldShape s;
  s.sequences = 2;
  s.layers = 3;
  s.kv_heads = 2;
  s.prompt_pages = 70;  // more than one run
  s.page_tokens = 4;
  s.steps = 40;
  s.selected = 8;
  s.capacity = 300;
  return s;
}

/// Passes everything on, and looks at the odds after each layer.
class Recorder final : public Predictor {
 public:
  Recorder(std::unique_ptr<Predictor> inner, std::span<const Tensor> weights)
      : inner_(std::move(inner)), weights_(weights) {}
  Status begin(const PredictorContext& context) override {
    horizon_ = context.horizon;
    PredictorContext told = context;
    told.weights = weights_;
    return inner_->begin(told);
  }
  void add_pages(std::span<const PageId> pages, const PageColumns& columns) override {
    inner_->add_pages(pages, columns);
  }
  void remove_pages(std::span<const PageId> pages) override { inner_->remove_pages(pages); }
  void observe(const LayerView& view) override {
    for (const GroupView& g : view.groups) {
      for (std::size_t i = 0; i + 1 < g.blocks.size() && view.step > 5; ++i) judge(g.page(i), view);
    }
    inner_->observe(view);
    for (std::uint32_t k = 1; k <= horizon_; ++k) {
      const auto odds = inner_->odds(k);
      for (const GroupView& g : view.groups) {
        for (std::size_t i = 0; i + 1 < g.blocks.size(); ++i) {
          REQUIRE(g.page(i) < odds.size());
          const float p = odds[g.page(i)];
          if (!(p >= 0 && p <= 1)) ++bad;
          digest = Rng::mix(digest ^ std::bit_cast<std::uint32_t>(p));
        }
      }
    }
  }
  std::span<const float> odds(std::uint32_t step) const override { return inner_->odds(step); }
  Work work() const override { return inner_->work(); }

  std::uint64_t digest = 0;
  std::uint64_t bad = 0;
  double squares = 0;   ///< of the odds for the next step against what came
  double constant = 0;  ///< of the share of all pages that are read
 private:
  void judge(PageId page, const LayerView& view) {
    const bool read =
        std::find(view.selected.begin(), view.selected.end(), page) != view.selected.end();
    const double r = read ? 1 : 0;
    const auto p = static_cast<double>(inner_->odds(1)[page]);
    squares += (p - r) * (p - r);
    constant += (0.11 - r) * (0.11 - r);
  }

  std::unique_ptr<Predictor> inner_;
  std::span<const Tensor> weights_;
  std::uint32_t horizon_ = 1;
};

struct Played {
  std::uint64_t digest = 0;
  std::uint64_t bad = 0;
  double squares = 0;
  double constant = 0;
  Work work;
};

Played play(const std::string& name, const PolicyWorld& world, const Parameters& given = {}) {
  const test::SomeWeights weights;
  const auto tensors = weights.tensors();
  auto made = make_predictor(name, given);
  REQUIRE(made);
  Recorder recorder(std::move(*made), tensors);
  auto policy = placement::make_policy("table", {});
  REQUIRE(policy);
  const auto run = world.play(**policy, &recorder);
  CHECK(run.broken == "");
  return {recorder.digest, recorder.bad, recorder.squares, recorder.constant, recorder.work()};
}

TEST_CASE("predictors: odds are probabilities, and the same reads give the same odds",
          "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const PolicyWorld world(small());
  const Played a = play(name, world);
  CHECK(a.bad == 0);
  CHECK(a.work.pages > 0);
  CHECK(a.digest == play(name, world).digest);
  WorldShape other = small();
  other.seed = 2;
  CHECK(a.digest != play(name, PolicyWorld(other)).digest);
}

TEST_CASE("predictors: all know more than the share of pages that are read", "[contract]") {
  // The same pages are warm all along. Weights drawn at random know nothing and are left out.
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const auto descriptor = find_predictor(name);
  REQUIRE(descriptor);
  if ((*descriptor)->traits.needs_weights || name == "mixture" || name == "same-step") return;
  const Played a = play(name, PolicyWorld(small()));
  CHECK(a.squares < a.constant);
}

TEST_CASE("predictors: tiny, empty, unread worlds and one that is read whole", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  const int form = GENERATE(0, 1, 2, 3);
  CAPTURE(name, form);
  WorldShape s = small();
  if (form == 0) {
    s.sequences = s.layers = s.kv_heads = s.prompt_pages = s.selected = 1;
    s.capacity = 2;
  } else if (form == 1) {
    s.selected = 0;
  } else if (form == 2) {
    s.prompt_pages = 1;
  } else {  // odds come as close to 1 as they can
    s.selected = 1000;
    s.steps = 120;
  }
  CHECK(play(name, PolicyWorld(s)).bad == 0);
}

TEST_CASE("predictors: with an empty history nothing is expected of any page", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const test::SomeWeights weights;
  const auto tensors = weights.tensors();
  auto made = make_predictor(name, {});
  REQUIRE(made);
  PredictorContext context;
  context.layers = 2;
  context.kv_heads = 1;
  context.horizon = 3;
  context.weights = tensors;
  REQUIRE((*made)->begin(context));
  const std::vector<PageId> pages{0, 1, 70, 200};
  (*made)->add_pages(pages, {});
  for (std::uint32_t k = 1; k <= context.horizon; ++k) {
    const auto odds = (*made)->odds(k);
    for (const PageId p : pages) {
      REQUIRE(p < odds.size());
      CHECK(odds[p] == 0);
    }
  }
  CHECK((*made)->work().pages == 0);
}

TEST_CASE("predictors: parameters at their ends keep the contract", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  const auto descriptor = find_predictor(name);
  REQUIRE(descriptor);
  const PolicyWorld world(small());
  for (const ParameterInfo& info : (*descriptor)->parameters) {
    for (const double value : {info.minimum, info.maximum}) {
      CAPTURE(name, info.name, value);
      CHECK(play(name, world, {{info.name, value}}).bad == 0);
    }
  }
  CHECK_FALSE(make_predictor(name, {{"no-such-parameter", 1}}));
}

TEST_CASE("predictors: horizons past the ends are refused", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  const std::uint32_t horizon = GENERATE(0U, kMaxHorizon + 1);
  const test::SomeWeights weights;
  const auto tensors = weights.tensors();
  auto made = make_predictor(name, {});
  REQUIRE(made);
  PredictorContext context;
  context.layers = 2;
  context.kv_heads = 1;
  context.horizon = horizon;
  context.weights = tensors;
  CHECK_FALSE((*made)->begin(context));
}

TEST_CASE("predictors: names are unique and an unknown one is told the known", "[contract]") {
  auto all = names();
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  const auto none = find_predictor("oracle");
  REQUIRE_FALSE(none);
  CHECK(none.error().what.find("persistence") != std::string::npos);
}

TEST_CASE("trained predictors refuse weights that are absent, misshapen or no numbers") {
  const std::string name = GENERATE("logistic", "net", "gru");
  const test::SomeWeights good;
  PredictorContext context;
  context.layers = 1;
  context.kv_heads = 1;
  const auto begun = [&](const test::SomeWeights& weights) {
    auto made = make_predictor(name, {});
    REQUIRE(made);
    const auto tensors = weights.tensors();
    context.weights = tensors;
    return (*made)->begin(context);
  };
  CHECK(begun(good));
  for (std::size_t i = 0; i < good.all.size(); ++i) {
    if (good.all[i].name.rfind(name, 0) != 0) continue;
    CAPTURE(good.all[i].name);
    test::SomeWeights absent = good;
    absent.all.erase(absent.all.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(begun(absent).error().what.find(good.all[i].name) != std::string::npos);
    test::SomeWeights misshapen = good;
    misshapen.all[i].shape.push_back(1);
    CHECK_FALSE(begun(misshapen));
    test::SomeWeights shorter = good;
    shorter.all[i].values.pop_back();
    CHECK_FALSE(begun(shorter));
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e20F}) {
      test::SomeWeights spoilt = good;
      spoilt.all[i].values.back() = bad;
      CHECK_FALSE(begun(spoilt));
    }
  }
}

}  // namespace
}  // namespace lehr::predictors
