// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

/// A trained line over recency, frequency, margin and position.
class Logistic final : public ColumnPredictor {
 private:
  Status start(const PredictorContext& context) override {
    LEHR_ASSIGN(weights_, LogisticWeights::from(context.weights));
    return {};
  }
  std::uint32_t steps_told() const override { return kTrainedSteps; }
  void judge(const Run& run, Logits& x) override {
    make_features(run, history_, warmth_, LogisticWeights::kInputs, features_);
    weights_.logits(features_, x, std::min(horizon_, kTrainedSteps));
    work_.flops += LogisticWeights::kFlops * run.length;
  }

  LogisticWeights weights_;
  Features features_{};
};

}  // namespace

const PredictorDescriptor& logistic_descriptor() {
  static const PredictorDescriptor descriptor{
      "logistic",
      "trained line over recency, frequency, margin and position",
      {},
      {.needs_weights = true},
      [](const Parameters&) -> std::unique_ptr<Predictor> { return std::make_unique<Logistic>(); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
