// SPDX-License-Identifier: Apache-2.0
#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"prior", "steps that the guess of one read in eight counts for", 4, 0.1, 1000},
};

/// How often a page was read of the steps that it has been there.
class Frequency final : public ColumnPredictor {
 public:
  explicit Frequency(const Parameters& p) : prior_(static_cast<float>(p.at("prior"))) {}

 private:
  Needs needs() const override { return {.history = false}; }
  void forget(PageId page) override {
    if (page >= reads_.size()) reads_.resize(2 * std::size_t{page} + Run::kLength, 0);
    reads_[page] = 0;
  }
  void note(const Run& run) override {
    for (std::uint32_t i = 0; i < run.length; ++i) reads_[run.first + i] += run.read[i];
  }
  void judge(const Run& run, Logits& x) override {
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      const auto reads = static_cast<float>(reads_[p]);
      const auto age = static_cast<float>(history_.age[p]);
      x[0][i] = logit((reads + 0.125F * prior_) / (age + prior_));
    }
  }

  float prior_;
  std::vector<std::uint32_t> reads_;
};

}  // namespace

const PredictorDescriptor& frequency_descriptor() {
  static const PredictorDescriptor descriptor{
      "frequency",
      "reads of a page over the steps it has been there",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        return std::make_unique<Frequency>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
