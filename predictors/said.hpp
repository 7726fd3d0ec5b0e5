// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "predictors/history.hpp"
#include "predictors/predictor.hpp"

namespace lehr::predictors {

/// What was said of each page in the last steps, as raw logits in tenths, one byte each: what the
/// outcome of a step is held against, however many steps ahead it was foretold. A page whose
/// sequence sat out a step, or that came since, has nothing to be held against.
class Said {
 public:
  /// `rows` rows of logits a step, for one step ahead and more, 1 to kMaxHorizon.
  explicit Said(std::uint32_t rows = 1) : rows_(rows) {}

  void cover(std::size_t pages);
  void forget(PageId page) { since_[page] = last_[page] = kNeverSeen; }

  /// The run's pages take part in this step. Before ago() and keep().
  void take_part(const Run& run);

  /// Logits of row `row` that were kept of the run's pages `ahead` steps ago, before this step's
  /// are kept. Returns of how many of its first pages there are any.
  std::uint32_t ago(const Run& run, std::uint32_t ahead, std::uint32_t row, float* x) const;

  void keep(const Run& run, std::uint32_t row, const float* x);

 private:
  static constexpr Step kNeverSeen = ~Step{0};

  std::vector<std::int8_t>& column(Step step, std::uint32_t row) {
    return kept_[(step % kMaxHorizon) * kMaxHorizon + row];
  }

  std::uint32_t rows_;
  std::array<std::vector<std::int8_t>, std::size_t{kMaxHorizon} * kMaxHorizon> kept_;
  // By page.
  std::vector<Step> last_;   ///< in which it took part
  std::vector<Step> since_;  ///< in each step from which on it took part
};

}  // namespace lehr::predictors
