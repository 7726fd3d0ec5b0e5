// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/history.hpp"
#include "predictors/logit.hpp"
#include "predictors/models/read_odds.hpp"
#include "predictors/odds_scaler.hpp"
#include "predictors/predictor.hpp"
#include "predictors/said.hpp"

namespace lehr::predictors {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"mass", "1: the masses of unread pages are used; 0: only what was read", 1, 0, 1},
    ParameterInfo{"company", "1: the odds are corrected by what neighbours, groups and layers do",
                  1, 0, 1},
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.995, 0.5, 1},
    ParameterInfo{"prior", "observations that a coarser estimate counts for", 20, 0.1, 1000},
};

/// ReadOdds for the next step; later ones are scaled from it.
class OddsTable final : public Predictor {
 public:
  explicit OddsTable(const Parameters& p)
      : odds_({p.at("forget"), p.at("prior"), p.at("company") != 0}), reader_(p.at("mass") != 0) {}

  Status begin(const PredictorContext& context) override {
    LEHR_TRY(check_context(context));
    horizon_ = context.horizon;
    return {};
  }
  void add_pages(std::span<const PageId> pages, const PageColumns& /*columns*/) override {
    odds_.add(pages, step_);
    cover();
    for (const PageId p : pages) {
      said_.forget(p);
      for (std::uint32_t k = 1; k < horizon_; ++k) later_[k][p] = 0;
    }
  }
  void remove_pages(std::span<const PageId> pages) override {
    odds_.remove(pages);
    for (const PageId p : pages) {
      for (std::uint32_t k = 1; k < horizon_ && p < later_[k].size(); ++k) later_[k][p] = 0;
    }
  }
  void observe(const LayerView& view) override {
    if (view.step != step_) scaler_.end_step();
    step_ = view.step;
    add_pages(view.filled, view.pages);
    const std::span<const Run> runs = reader_.read(view);
    for (const Run& run : runs) {
      work_.pages += run.length;
      odds_.reach(run.first + run.length - 1);
    }
    cover();
    if (horizon_ > 1) learn(runs);
    odds_.observe(view, runs);
    if (horizon_ > 1) tell(runs);
  }
  std::span<const float> odds(std::uint32_t step) const override {
    return step == 1 ? odds_.odds() : std::span<const float>(later_[step - 1]);
  }
  Work work() const override { return work_; }

 private:
  void cover() {
    const std::size_t n = odds_.odds().size();
    said_.cover(n);
    for (std::uint32_t k = 1; k < horizon_; ++k) later_[k].resize(n, 0);
  }
  void learn(std::span<const Run> runs) {
    std::array<float, Run::kLength> x{};
    for (const Run& run : runs) {
      said_.take_part(run);
      // A quarter is enough.
      if ((run.view->layer + run.view->step + run.group->kv_head) % 4 != 0) continue;
      for (std::uint32_t ahead = 2; ahead <= horizon_; ++ahead) {
        const std::uint32_t n = said_.ago(run, ahead, 0, x.data());
        scaler_.learn(ahead, x.data(), run.read, n);
      }
    }
  }
  void tell(std::span<const Run> runs) {
    std::array<float, Run::kLength> x{};
    const auto now = odds_.odds();
    for (const Run& run : runs) {
      logits_of(&now[run.first], run.length, x.data());
      said_.keep(run, 0, x.data());
      for (std::uint32_t k = 1; k < horizon_; ++k)
        scaler_.apply(k + 1, x.data(), run.length, &later_[k][run.first]);
    }
  }

  ReadOdds odds_;
  LayerReader reader_;
  OddsScaler scaler_;
  Said said_;
  std::uint32_t horizon_ = 1;
  Step step_ = 0;
  Work work_;
  std::array<std::vector<float>, kMaxHorizon> later_;  ///< from the second step on
};

}  // namespace

const PredictorDescriptor& table_descriptor() {
  static const PredictorDescriptor descriptor{
      "table",
      "odds of cells of gap, frequency and margin, counted while decoding",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Predictor> {
        return std::make_unique<OddsTable>(p);
      },
  };
  return descriptor;
}

}  // namespace lehr::predictors
