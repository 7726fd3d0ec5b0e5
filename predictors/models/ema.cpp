// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"half_life", "steps after which a read counts half", 4, 0.25, 64},
};

/// The decayed rate of being read, as caches that prefetch by a threshold on it have it.
class Ema final : public ColumnPredictor {
 public:
  explicit Ema(const Parameters& p)
      : decay_(static_cast<float>(std::exp2(-1 / p.at("half_life")))) {}

 private:
  Needs needs() const override { return {.history = false}; }
  void forget(PageId page) override {
    if (page >= rate_.size()) rate_.resize(2 * std::size_t{page} + Run::kLength, 0);
    rate_[page] = 0;
  }
  void note(const Run& run) override {
    for (std::uint32_t i = 0; i < run.length; ++i) {
      float& rate = rate_[run.first + i];
      rate = rate * decay_ + static_cast<float>(run.read[i]) * (1 - decay_);
    }
  }
  void judge(const Run& run, Logits& x) override {
    for (std::uint32_t i = 0; i < run.length; ++i)
      x[0][i] = logit(0.002F + 0.996F * rate_[run.first + i]);
  }

  float decay_;
  std::vector<float> rate_;
};

}  // namespace

const PredictorDescriptor& ema_descriptor() {
  static const PredictorDescriptor descriptor{
      "ema",
      "the decayed rate of being read",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Predictor> { return std::make_unique<Ema>(p); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
