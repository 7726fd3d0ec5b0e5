// SPDX-License-Identifier: Apache-2.0
#include "predictors/models/read_odds.hpp"
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

class OddsTable final : public Predictor {
 public:
  explicit OddsTable(const Parameters& p)
      : odds_({p.at("forget"), p.at("prior"), p.at("mass") != 0, p.at("company") != 0}) {}

  Status begin(const PredictorContext& /*context*/) override { return {}; }
  void add_pages(std::span<const PageId> pages, const PageColumns& /*columns*/) override {
    odds_.add(pages, step_);
  }
  void remove_pages(std::span<const PageId> /*pages*/) override {}
  void observe(const LayerView& view) override {
    step_ = view.step;
    odds_.add(view.filled, step_);
    odds_.observe(view);
    for (const GroupView& group : view.groups) work_.pages += group.blocks.size();
  }
  std::span<const float> odds(std::uint32_t /*step*/) const override { return odds_.odds(); }
  Work work() const override { return work_; }

 private:
  ReadOdds odds_;
  Step step_ = 0;
  Work work_;
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
