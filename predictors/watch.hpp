// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "predictors/history.hpp"
#include "predictors/odds_groups.hpp"
#include "predictors/odds_scaler.hpp"
#include "predictors/predictor.hpp"

namespace lehr::predictors {

struct WatchOptions {
  double error_limit = 0.15;      ///< of the reads foretold against the reads seen
  std::uint32_t pause_steps = 8;  ///< at least, that `paused` lasts
  double misled = 2;              ///< times what came, that pages of like odds may promise
  double worse = 1.02;  ///< squared error against the yardstick's, above which nobody listens
};

/// Stands between a predictor and whoever acts on it: compares what was foretold with what came,
/// on a quarter of the runs. Three things follow.
/// - Reads foretold and reads seen differ by more than the limit, of late, or pages of like odds
///   promise more than twice what comes: the odds are rescaled by a temperature and a threshold
///   learnt meanwhile, or each group by itself; `paused` says so until what is told is right again.
/// - The odds are worse than a yardstick (how often pages of the same gap were read), by more than
///   nothing to speak of: no odds are told at all, until they are better again.
/// - Anything that is no number in [0, 1] counts as worse than any yardstick.
class Watch {
 public:
  explicit Watch(const WatchOptions& options = {}) : options_(options) {}

  void add_pages(std::span<const PageId> pages);

  /// The layer's outcome against the predictor's odds, before it has learnt of it.
  void compare(const LayerView& view, const Predictor& predictor);

  /// What to tell of all pages after the predictor has observed the layer that was compared.
  Forecast tell(const LayerView& view, const Predictor& predictor, std::uint32_t horizon);
  /// The same again, of a layer that was neither compared nor observed in this step.
  Forecast retell(Step step, const Predictor& predictor, std::uint32_t horizon);

  /// Odds of a read a step, in the mean over the forecast's window: by PageId, as current as the
  /// forecast. Empty where that tells none. Valid until the next call.
  std::span<const float> over_window(const Forecast& forecast);

  /// The yardstick is met: odds are passed on.
  bool trusted() const { return trusted_; }
  std::uint32_t recalibrations() const { return recalibrations_; }

 private:
  static constexpr std::uint32_t kGaps = 65;
  struct Counts {
    double seen = 0;
    double read = 0;
  };

  void end_step(Step step);
  void conclude(Step step);
  void hold_against(const Run& run, std::span<const float> odds);
  bool sound(std::span<const float> odds) const;
  void rescale(const Predictor& predictor, std::uint32_t horizon);

  WatchOptions options_;
  LayerReader reader_{false};
  std::span<const Run> runs_;  ///< of the layer that was compared last
  OddsScaler scaler_;
  OddsGroups groups_;
  Step step_ = 0;
  std::vector<std::uint64_t> bits_;  ///< by page: reads of the last 64 steps
  std::vector<std::uint8_t> known_;  ///< by page: 1 once odds were told of it
  std::array<Counts, kGaps> gaps_{};
  std::array<double, kGaps> yardstick_{};

  // Of the step in hand, then smoothed.
  double foretold_ = 0, raw_foretold_ = 0, seen_ = 0, covered_ = 0, compared_ = 0;
  double squares_ = 0, yardstick_squares_ = 0;
  double smooth_foretold_ = 0, smooth_raw_ = 0, smooth_seen_ = 0, smooth_covered_ = 0;
  double smooth_squares_ = 0, smooth_yardstick_ = 0;
  double error_ = 0;
  std::uint32_t steps_compared_ = 0;
  bool trusted_ = true;
  bool unsound_ = false;
  bool rescaling_ = false;
  bool grouped_ = false;  ///< by groups of like odds
  Step paused_until_ = 0;
  std::uint32_t recalibrations_ = 0;
  std::array<std::vector<float>, kMaxHorizon> scaled_;
  std::vector<float> mean_;  ///< over the window
};

inline constexpr std::uint32_t kLongestWindow = 5;

/// Steps ahead for which promotions pay, 2 to 5: as many as the link needs to bring what is
/// expected and absent, and the fewest where the predictor is not to be relied on.
std::uint32_t prefetch_window(Seconds step, Seconds link_per_page, double pages, float confidence);

}  // namespace lehr::predictors
