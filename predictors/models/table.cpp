// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "predictors/history.hpp"
#include "predictors/logit.hpp"
#include "predictors/models/read_odds.hpp"
#include "predictors/odds_scaler.hpp"
#include "predictors/predictor.hpp"

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
      : odds_({p.at("forget"), p.at("prior"), p.at("mass") != 0, p.at("company") != 0}) {}

  Status begin(const PredictorContext& context) override {
    if (context.horizon == 0 || context.horizon > kMaxHorizon)
      return invalid("predictor table: horizon, expected 1 to 8", Reason::kOutOfRange);
    horizon_ = context.horizon;
    return {};
  }
  void add_pages(std::span<const PageId> pages, const PageColumns& /*columns*/) override {
    odds_.add(pages, step_);
    cover();
    for (const PageId p : pages) {
      for (std::uint32_t k = 1; k < horizon_; ++k) later_[k][p] = 0;
      for (auto& said : said_) {
        if (horizon_ > 1) said[p] = 0;
      }
    }
  }
  void remove_pages(std::span<const PageId> /*pages*/) override {}
  void observe(const LayerView& view) override {
    if (view.step != step_) scaler_.end_step();
    step_ = view.step;
    add_pages(view.filled, view.pages);
    if (horizon_ > 1) learn(view);
    odds_.observe(view);
    for (const GroupView& group : view.groups) work_.pages += group.blocks.size();
    if (horizon_ == 1) return;
    cover();
    tell(view);
  }
  std::span<const float> odds(std::uint32_t step) const override {
    return step == 1 ? odds_.odds() : std::span<const float>(later_[step - 1]);
  }
  Work work() const override { return work_; }

 private:
  void cover() {
    if (horizon_ == 1) return;
    const std::size_t n = odds_.odds().size();
    for (std::uint32_t k = 1; k < horizon_; ++k) later_[k].resize(n, 0);
    for (auto& said : said_) said.resize(n, 0);
  }
  void learn(const LayerView& view) {
    std::array<float, Run::kLength> x{};
    for (const GroupView& group : view.groups) {
      if ((view.layer + view.step + group.kv_head) % 4 != 0) continue;  // a quarter is enough
      reader_.for_each(group, view, [&](const Run& run) {
        for (std::uint32_t ahead = 2; ahead <= horizon_ && ahead <= view.step; ++ahead) {
          const auto& said = said_[(view.step - ahead) % kMaxHorizon];
          for (std::uint32_t i = 0; i < run.length; ++i)
            x[i] = static_cast<float>(said[run.first + i]) * 0.1F;
          scaler_.learn(ahead, x.data(), run.read, run.length);
        }
      });
    }
  }
  void tell(const LayerView& view) {
    std::array<float, Run::kLength> x{};
    const auto now = odds_.odds();
    for (const GroupView& group : view.groups) {
      reader_.for_each(group, view, [&](const Run& run) {
        for (std::uint32_t i = 0; i < run.length; ++i) {
          x[i] = logit(now[run.first + i]);
          said_[view.step % kMaxHorizon][run.first + i] = static_cast<std::int8_t>(x[i] * 10);
        }
        for (std::uint32_t k = 1; k < horizon_; ++k)
          scaler_.apply(k + 1, x.data(), run.length, &later_[k][run.first]);
      });
    }
  }

  ReadOdds odds_;
  GroupReader reader_;
  OddsScaler scaler_;
  std::uint32_t horizon_ = 1;
  Step step_ = 0;
  Work work_;
  std::array<std::vector<float>, kMaxHorizon> later_;       ///< from the second step on
  std::array<std::vector<std::int8_t>, kMaxHorizon> said_;  ///< by step: logits in tenths
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
