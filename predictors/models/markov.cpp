// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.99, 0.5, 1},
    ParameterInfo{"own", "a page's own transitions against those of all: weight of each", 1, 0,
                  100},
};

/// Two states a page, read and not. From "read" it goes on with its own rate of staying; from "not
/// read" it returns with the hazard of its gap, counted over all pages of the layer.
class Markov final : public ColumnPredictor {
 public:
  explicit Markov(const Parameters& p)
      : forget_(p.at("forget")), own_(static_cast<float>(p.at("own"))) {}

 private:
  static constexpr std::uint32_t kGaps = 65;
  struct Counts {
    double seen = 0;
    double read = 0;
  };

  Status start(const PredictorContext& /*context*/) override {
    counts_.assign(std::size_t{layers_} * kGaps, {});
    return {};
  }
  void forget(PageId page) override {
    if (page >= stays_.size()) {
      stays_.resize(2 * std::size_t{page} + Run::kLength, 0);
      leaves_.resize(stays_.size(), 0);
    }
    stays_[page] = leaves_[page] = 0;
  }
  Counts& counts(std::uint32_t layer, std::uint32_t gap) {
    return counts_[std::size_t{layer} * kGaps + gap];
  }
  void note(const Run& run) override {
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      if (!has_past(p)) continue;
      const std::uint32_t gap = history_.gap(p);
      Counts& c = counts(run.view->layer, gap);
      c.seen += 1;
      c.read += run.read[i];
      if (gap != 0) continue;
      (run.read[i] != 0 ? stays_ : leaves_)[p] += 1;
    }
  }
  void noted(const LayerView& view) override {
    for (std::uint32_t gap = 0; gap < kGaps; ++gap) {
      Counts& c = counts(view.layer, gap);
      const double guess = gap == 0 ? 0.75 : 0.3 / (1.0 + gap * gap);
      hazard_[gap] = static_cast<float>((c.read + 4 * guess) / (c.seen + 4));
      c.seen *= forget_;
      c.read *= forget_;
    }
  }
  void judge(const Run& run, Logits& x) override {
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const PageId p = run.first + i;
      const std::uint32_t gap = history_.gap(p);
      float odds = hazard_[gap];
      if (gap == 0) {
        constexpr float kPrior = 3;
        const float stays = own_ * static_cast<float>(stays_[p]);
        const float all = stays + own_ * static_cast<float>(leaves_[p]);
        odds = (stays + kPrior * odds) / (all + kPrior);
      }
      x[0][i] = logit(odds);
    }
  }

  double forget_;
  float own_;
  std::vector<Counts> counts_;  ///< by layer and gap
  std::array<float, kGaps> hazard_{};
  std::vector<std::uint32_t> stays_;
  std::vector<std::uint32_t> leaves_;
};

}  // namespace

const PredictorDescriptor& markov_descriptor() {
  static const PredictorDescriptor descriptor{
      "markov",
      "two states a page; returns by the hazard of the gap",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Predictor> { return std::make_unique<Markov>(p); },
  };
  return descriptor;
}

}  // namespace lehr::predictors
