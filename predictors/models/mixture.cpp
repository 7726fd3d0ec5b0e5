// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "predictors/column_predictor.hpp"
#include "predictors/logit.hpp"
#include "predictors/models/within_step.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"rate", "of learning the weights, a step", 0.1, 0, 1},
    ParameterInfo{"gru", "1: the recurrent network takes part, at fifty times the cost", 0, 0, 1},
    ParameterInfo{"within", "1: corrected by the layers already done in the step", 1, 0, 1},
};

/// `table` and, where there are weights, `net` (and `gru`), each weighed by what it has added to
/// the others of late: an online regression of the outcome on their logits.
class Stack final : public ColumnPredictor {
 public:
  explicit Stack(const Parameters& p) : rate_(p.at("rate")), with_gru_(p.at("gru") != 0) {}

 private:
  Status start(const PredictorContext& context) override {
    PredictorContext one = context;
    one.horizon = 1;
    for (const std::string_view name : {"table", "net", "gru"}) {
      if (name == "gru" && !with_gru_) continue;
      LEHR_ASSIGN(const PredictorDescriptor* descriptor, find_predictor(name));
      if (descriptor->traits.needs_weights && context.weights.empty()) continue;
      LEHR_ASSIGN(auto made, make_predictor(name, {}));
      LEHR_TRY(made->begin(one));
      experts_.push_back(std::move(made));
    }
    weight_.assign(experts_.size(), 1.0 / static_cast<double>(experts_.size()));
    x_.assign(experts_.size(), {});
    gradient_.assign(experts_.size(), 0);
    curvature_.assign(experts_.size(), 0);
    return {};
  }
  void forget(PageId page) override {
    for (auto& e : experts_) e->add_pages({&page, 1}, {});
  }
  Needs needs() const override { return {.history = false}; }
  void take_odds() {
    odds_.resize(experts_.size());
    for (std::size_t e = 0; e < experts_.size(); ++e) odds_[e] = experts_[e]->odds(1);
  }
  /// Each expert's logits of a run, and their weighed sum.
  void mix(const Run& run, float* sum) {
    std::fill_n(sum, run.length, 0.0F);
    for (std::size_t e = 0; e < experts_.size(); ++e) {
      logits_of(&odds_[e][run.first], run.length, x_[e].data());
      const auto w = static_cast<float>(weight_[e]);
      for (std::uint32_t i = 0; i < run.length; ++i) sum[i] += w * x_[e][i];
    }
  }
  void note(const Run& run) override {
    const LayerView& view = *run.view;
    if (view.layer == 0 && step_ != view.step) improve(view.step);
    if ((view.layer + view.step + run.group->kv_head) % 8 != 0 || !has_past(run.first)) return;
    take_odds();
    std::array<float, Run::kLength> sum;
    mix(run, sum.data());
    for (std::uint32_t i = 0; i < run.length; ++i) {
      const auto odds = static_cast<double>(sigmoid(sum[i]));
      const double error = static_cast<double>(run.read[i]) - odds;
      for (std::size_t e = 0; e < experts_.size(); ++e) {
        const auto x = static_cast<double>(x_[e][i]);
        gradient_[e] += error * x;
        curvature_[e] += odds * (1 - odds) * x * x;
      }
    }
  }
  void improve(Step step) {
    step_ = step;
    const auto n = static_cast<double>(experts_.size());
    for (std::size_t e = 0; e < experts_.size(); ++e) {
      weight_[e] += rate_ / n * gradient_[e] / (curvature_[e] + 10);
      weight_[e] = std::clamp(weight_[e], 0.0, 2.0);
      gradient_[e] = 0;
      curvature_[e] *= 0.5;
    }
  }
  void noted(const LayerView& view) override {
    LayerView seen = view;
    seen.filled = {};  // they were told by forget()
    for (auto& e : experts_) e->observe(seen);
    take_odds();
    work_.flops = 0;
    for (const auto& e : experts_) work_.flops += e->work().flops;
  }
  void judge(const Run& run, Logits& x) override { mix(run, x[0].data()); }

  double rate_;
  bool with_gru_;
  Step step_ = 0;
  std::vector<std::unique_ptr<Predictor>> experts_;
  std::vector<double> weight_;
  std::vector<double> gradient_;
  std::vector<double> curvature_;
  std::vector<std::array<float, Run::kLength>> x_;  ///< logits of the run in hand
  std::vector<std::span<const float>> odds_;        ///< of each expert, by PageId
};

}  // namespace

const PredictorDescriptor& mixture_descriptor() {
  static const PredictorDescriptor descriptor{
      "mixture",
      "table and net, weighed by what each has added of late, corrected within the step",
      kParameters,
      {.within_step = true},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        auto stack = std::make_unique<Stack>(p);
        if (p.at("within") == 0) return stack;
        return std::make_unique<SameStep>(std::move(stack), nullptr, 0.99, 0.35);
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
