// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

/// A trained layer of 16 units over a page's past, its neighbours, other groups and other layers.
class Net final : public ColumnPredictor {
 private:
  Status start(const PredictorContext& context) override {
    LEHR_ASSIGN(weights_, NetWeights::from(context.weights));
    return {};
  }
  std::uint32_t steps_told() const override { return kTrainedSteps; }
  void judge(const Run& run, Logits& x) override {
    make_features(run, history_, warmth_, NetWeights::kInputs, features_);
    weights_.logits(features_, x, std::min(horizon_, kTrainedSteps));
    work_.flops += NetWeights::kFlops * run.length;
  }

  NetWeights weights_;
  Features features_{};
};

}  // namespace

const PredictorDescriptor& net_descriptor() {
  static const PredictorDescriptor descriptor{
      "net",
      "trained network of 16 units over a page's past and what stands beside it",
      {},
      {.needs_weights = true},
      [](const Parameters&) -> std::unique_ptr<Predictor> { return std::make_unique<Net>(); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
