// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "predictors/history.hpp"
#include "predictors/odds_scaler.hpp"
#include "predictors/predictor.hpp"
#include "predictors/said.hpp"

namespace lehr::predictors {

/// Raw logits of a run's pages, a row for each number of steps ahead.
using Logits = std::array<std::array<float, Run::kLength>, kMaxHorizon>;

/// Which of the shared columns a model reads; the others are not kept.
struct Needs {
  bool history = true;  ///< all of History; its ages are kept in any case
  bool warmth = false;
  bool mass = true;  ///< false: margins are unknown to it
};

/// What most predictors share: the columns, the walk through groups and runs, and the scaling of
/// raw logits to odds for each step ahead, which learns from a quarter of the runs. A model says
/// one thing: the raw logits of a run.
class ColumnPredictor : public Predictor {
 public:
  Status begin(const PredictorContext& context) final;
  void add_pages(std::span<const PageId> pages, const PageColumns& columns) final;
  void remove_pages(std::span<const PageId> pages) final;
  void observe(const LayerView& view) final;
  std::span<const float> odds(std::uint32_t step) const final { return odds_[step - 1]; }
  Work work() const final { return work_; }

 protected:
  /// A run of a layer as it was when the layer ran last.
  struct Place {
    PageId first;
    std::uint32_t position;
    std::uint32_t length;
    std::uint32_t sequence;
    std::uint32_t kv_head;
    std::uint32_t group;  ///< in the view of that layer
  };

  virtual Status start(const PredictorContext& /*context*/) { return {}; }
  /// The page has no past.
  virtual void forget(PageId /*page*/) {}
  /// The layer's outcome is known, and not yet part of the history.
  virtual void note(const Run& /*run*/) {}
  /// Every run of the layer was noted.
  virtual void noted(const LayerView& /*view*/) {}
  /// Writes the first steps_told() rows. Runs come as in places() of the layer; their reads and
  /// margins are in the history now, not in `run`.
  virtual void judge(const Run& run, Logits& x) = 0;
  /// Every run of the layer was judged: may revise() runs of other layers.
  virtual void judged(const LayerView& /*view*/) {}
  virtual Needs needs() const { return {}; }
  /// Rows that judge() writes; further steps ahead are scaled from the last of them.
  virtual std::uint32_t steps_told() const { return 1; }

  /// New odds for the next run of a layer still to come, from what was said of it and the change of
  /// its logits. Not what the scaling learns from.
  void revise(const Place& place, const float* change);
  std::span<const Place> places(std::uint32_t layer) const { return places_[layer]; }
  bool has_past(PageId page) const { return page < history_.size() && history_.age[page] > 0; }

  std::uint32_t horizon_ = 1;
  std::uint32_t layers_ = 1;
  History history_;
  Warmth warmth_;
  Work work_;

 private:
  void remember(const Run& run);
  void learn(const Run& run);
  void publish(const Run& run, const Logits& x);
  void reach(PageId page);

  std::uint32_t rows() const { return std::min(steps_told(), horizon_); }

  LayerReader reader_;
  OddsScaler scaler_;
  Said said_;
  Needs needs_;
  Step step_ = 0;
  std::array<std::vector<float>, kMaxHorizon> odds_;
  std::vector<std::vector<Place>> places_;
};

}  // namespace lehr::predictors
