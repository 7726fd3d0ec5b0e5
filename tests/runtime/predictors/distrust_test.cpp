// SPDX-License-Identifier: Apache-2.0
// Predictors that are wrong, on a recorded trace and in the whole step loop.
#include <limits>

#include <catch2/catch.hpp>

#include "runtime/predictor_weights.hpp"
#include "tests/runtime/predictors/recorded_cut.hpp"
#include "tests/support/spoilt_predictor.hpp"

namespace lehr::runtime {
namespace {

class Recorded : public test::RecordedCut {
 public:
  explicit Recorded(double hbm = 0.1) : RecordedCut(hbm, 64) {}

  StepReport play(const char* policy, std::shared_ptr<predictors::Predictor> own = nullptr,
                  const predictors::WatchOptions& watch = {},
                  std::span<const predictors::Tensor> weights = {}) const {
    ReplayOptions options = this->options();
    options.runtime.policy = policy;
    options.runtime.own_predictor = std::move(own);
    options.runtime.watch = watch;
    options.runtime.predictor_weights = weights;
    const auto result = replayed(options);
    REQUIRE(result);
    return result->warm;
  }

  StepReport play_spoilt(const std::string& form,
                         const predictors::WatchOptions& watch = {}) const {
    return play("table", std::make_shared<lehr::test::SpoiltPredictor>(lehr::test::poison(form)),
                watch);
  }
};

TEST_CASE(
    "on a recorded trace poisoned and constant predictors cost a hundredth over lru at most") {
  const Recorded recorded(GENERATE(0.1, 0.3));
  const StepReport lru = recorded.play("lru");
  for (const std::string& form : lehr::test::poisons()) {
    CAPTURE(form);
    const StepReport run = recorded.play_spoilt(form);
    CHECK(run.total <= 1.01 * lru.total);
    CHECK(static_cast<double>(run.misses) <= 1.01 * static_cast<double>(lru.misses));
  }
}

TEST_CASE(
    "control: without the watch a poisoned predictor is worse than lru, an honest one better") {
  const Recorded recorded;
  const StepReport lru = recorded.play("lru");
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const predictors::WatchOptions blind{
      .error_limit = kNever, .pause_steps = 0, .misled = kNever, .worse = kNever};
  CHECK(recorded.play_spoilt("inverted", blind).total > 1.01 * lru.total);
  const Recorded roomy(0.3);
  predictors::WatchOptions credulous;
  credulous.misled = kNever;
  CHECK(roomy.play_spoilt("whispers", credulous).total > 1.01 * roomy.play("lru").total);
  CHECK(recorded.play("table").total < 0.99 * lru.total);
}

TEST_CASE("weights that say the opposite of what was learnt cost a hundredth over lru at most") {
  const Recorded recorded;
  const StepReport lru = recorded.play("lru");
  const auto shipped = PredictorWeights::shipped().tensors();
  std::vector<std::vector<float>> values;
  std::vector<predictors::Tensor> turned;
  for (const auto& t : shipped) {
    const bool last = t.name == "net.w2" || t.name == "net.b2";
    auto& v = values.emplace_back(t.values.begin(), t.values.end());
    for (float& x : v) x = last ? -x : x;
    turned.push_back({t.name, t.shape, v});
  }
  CHECK(recorded.play("table", nullptr, {}, turned).total <= 1.01 * lru.total);
  CHECK(recorded.play("table", nullptr, {}, shipped).total < 0.99 * lru.total);
}

}  // namespace
}  // namespace lehr::runtime
