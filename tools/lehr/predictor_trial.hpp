// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "predictors/predictor.hpp"
#include "runtime/replay/layer_feed.hpp"

namespace lehr::tools {

inline constexpr std::uint32_t kTrialSteps = 3;   ///< steps ahead that are judged
inline constexpr std::uint32_t kLayerGroups = 3;  ///< early, middle and late layers; then all

/// Pages that were named, and those of them that were read.
struct Named {
  double pages = 0;
  double reads = 0;
};

/// Sums over pages and steps.
struct TrialCell {
  double pages = 0;
  double reads = 0;
  double brier = 0;                ///< squared error of the odds
  std::array<double, 16> count{};  ///< pages by bin of the odds' logit
  std::array<double, 16> said{};   ///< sum of their odds
  std::array<double, 16> came{};   ///< reads
  // Of the pages named: as many as the step before read, and the hidden-miss budget more.
  std::vector<Named> named;  ///< by budget

  void add(const TrialCell& o);
  double precision(std::size_t budget) const {
    return named[budget].pages > 0 ? named[budget].reads / named[budget].pages : 0;
  }
  double recall(std::size_t budget) const { return reads > 0 ? named[budget].reads / reads : 0; }
  double brier_score() const { return pages > 0 ? brier / pages : 0; }
  /// Mean distance of odds and share read, over bins of the odds, weighed by pages.
  double calibration_error() const;
};

/// What one predictor said of one recorded sequence.
struct Trial {
  /// [steps ahead - 1][layer group; the last: all layers]
  std::array<std::array<TrialCell, kLayerGroups + 1>, kTrialSteps> cells;
  double returns = 0;          ///< pages read that the step before did not read
  std::vector<Named> fetched;  ///< by budget: the likeliest of the pages that it did not read
  double numbers = 0;          ///< reads of pages whose tokens hold digits, next step
  double numbers_named = 0;    ///< with the first budget
  bool numbers_known = false;
  double seconds = 0;  ///< CPU time in observe()
  std::uint32_t steps = 0;
  predictors::Work work;
};

struct TrialOptions {
  std::vector<double> budgets{0.012};  ///< hidden-miss budgets, as shares of the pages a step reads
  std::uint32_t warmup = 16;
  runtime::LayerFeed::Masses masses = runtime::LayerFeed::Masses::kMeanAndPeak;
  Parameters parameters;
  std::span<const predictors::Tensor> weights;
};

/// Plays the sequence to the predictor, and compares what it says before each layer with what the
/// layer reads. Ties are broken at random, in expectation.
Result<Trial> try_predictor(const runtime::TraceSelection& selection, const std::string& name,
                            const TrialOptions& options);

}  // namespace lehr::tools
