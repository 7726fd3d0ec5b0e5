// SPDX-License-Identifier: Apache-2.0
#include "predictors/column_predictor.hpp"

namespace lehr::predictors {

namespace {

/// What was read is read again. The yardstick of all others.
class Persistence final : public ColumnPredictor {
 private:
  void judge(const Run& run, Logits& x) override {
    for (std::uint32_t i = 0; i < run.length; ++i)
      x[0][i] = (history_.bits[run.first + i] & 1U) != 0 ? 2.0F : -3.0F;
  }
};

}  // namespace

const PredictorDescriptor& persistence_descriptor() {
  static const PredictorDescriptor descriptor{
      "persistence",
      "the last selection, again",
      {},
      {},
      [](const Parameters&) -> std::unique_ptr<Predictor> {
        return std::make_unique<Persistence>();
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
