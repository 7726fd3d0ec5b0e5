// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"mass", "1: the masses of unread pages are used; 0: only what was read", 1, 0, 1},
    ParameterInfo{"company", "1: neighbours, groups and layers are looked at; 0: the page alone", 1,
                  0, 1},
};

/// A trained layer of 16 units over a page's past, its neighbours, other groups and other layers.
class Net final : public ColumnPredictor {
 public:
  explicit Net(const Parameters& p) : mass_(p.at("mass") != 0), company_(p.at("company") != 0) {}

 private:
  Status start(const PredictorContext& context) override {
    LEHR_ASSIGN(weights_, NetWeights::from(context.weights));
    return {};
  }
  Needs needs() const override { return {.warmth = company_, .mass = mass_}; }
  std::uint32_t steps_told() const override { return kTrainedSteps; }
  void judge(const Run& run, Logits& x) override {
    if (company_) {
      make_features(run, history_, warmth_, NetWeights::kInputs, features_);
    } else {
      make_features(run, history_, warmth_, kOwnFeatures, features_);
      stand_alone(run, history_, features_);
    }
    weights_.logits(features_, x, std::min(horizon_, kTrainedSteps));
    work_.flops += NetWeights::kFlops * run.length;
  }

  bool mass_;
  bool company_;
  NetWeights weights_;
  Features features_{};
};

}  // namespace

const PredictorDescriptor& net_descriptor() {
  static const PredictorDescriptor descriptor{
      "net",
      "trained network of 16 units over a page's past and what stands beside it",
      kParameters,
      {.needs_weights = true},
      [](const Parameters& p) -> std::unique_ptr<Predictor> { return std::make_unique<Net>(p); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
