// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "kernels/base/exchange.hpp"

namespace lehr::placement {

/// Which share of a step's softmax mass lies on a page and on all lowered pages together, as far as
/// reads have told: averages over the latest steps, in which a step without a read counts as none.
/// Masses are known only when attention has come, so that this says what to expect, not what will
/// be. A few ns for each page read.
class MassLedger {
 public:
  static constexpr double kHalfLife = 16;  ///< steps

  MassLedger();

  void next_step();
  /// A layer's reads. Where its masses are not told, nothing is known of the pages that it reads.
  void read(const LayerView& view);
  /// A page of that share was lowered: it counts at once, and then for what it turns out to have.
  void lowered(double share) { pending_ += share; }
  void forget(std::span<const PageId> pages);

  bool known() const { return seen_before_ > 0; }
  /// How much of the average the steps seen so far are, in [0, 1]: who knows little commits little.
  double knowledge() const { return 1 - unseen_; }
  /// Share of the coming steps' mass to be expected on what is lowered: the most of late.
  double used() const { return peak_ + pending_; }
  /// The same of one page, which is read with these odds: its average, or its latest mass if more,
  /// of all sequences that share it. All there is where that was not told.
  double share(PageId page, float odds, Step now) const;

 private:
  static constexpr std::size_t kDecays = 512;
  static constexpr float kUntold = -1;

  void reach(PageId page, std::size_t rows);
  double mean(PageId page, Step now) const;
  void note(PageId page, float mass, const LayerView& view);
  void read_again(const LayerView& view, const GroupView& group);

  std::vector<double> decay_;  ///< by steps
  std::vector<float> mean_;    ///< by page: mass a step, as of its last read
  std::vector<float> latest_;  ///< by page: mass of its last read, or kUntold
  std::vector<Step> last_;
  double seen_ = 0;  ///< mass of the step so far
  double on_lowered_ = 0;
  double seen_before_ = 0;  ///< of a step, on average
  double unseen_ = 1;       ///< weight of the steps before the first
  double peak_ = 0;         ///< largest share on lowered pages, lately
  double pending_ = 0;      ///< of pages lowered in the latest steps
};

}  // namespace lehr::placement
