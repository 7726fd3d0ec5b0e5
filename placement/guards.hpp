// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/units.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

struct GuardOptions {
  double error_limit = 0.15;  ///< of the predicted step, against what it took
  std::uint32_t pause_steps =
      8;                       ///< without migrations after that, while the prediction recalibrates
  std::uint32_t rollback = 5;  ///< latest migrations that are undone if nobody has used them
  std::uint32_t hysteresis_steps = 16;  ///< within which a second crossing has to be paid for
  double pays = 2;                      ///< visits that pay for a second crossing
  double thrash = 1.0;  ///< working set against HBM above which moves may push each other out
  double useful = 0.5;  ///< share of the migrated pages that must be read for them not to do so
};

/// Stops migrations that do harm: when predictions are wrong, when the batch's working set does not
/// fit, when a page would go to and fro. Knows no clock: steps and their times are told.
class MigrationGuard {
 public:
  enum class State : std::uint8_t { kOpen, kRecalibrating, kThrashing };

  MigrationGuard() : MigrationGuard(GuardOptions{}) {}
  explicit MigrationGuard(const GuardOptions& options) : options_(options) {}

  /// May this page cross a link now? `visits` are those expected until the window ends.
  bool may_cross(PageId page, Step now, double visits) const;
  /// A page was brought into HBM ahead of need.
  void crossed(PageId page, Step now);
  /// A page was read; true if that is what it was brought ahead of need for. O(1), then
  /// O(rollback).
  bool used(PageId page) {
    if (page >= unread_.size() || unread_[page] == 0) return false;
    read(page);
    return true;
  }
  /// A page ceased to exist.
  void forget(PageId page);

  /// The step's verdict. Migrations to undo are appended to `undo`, the latest first. Times that
  /// are no positive numbers count as a wrong prediction.
  void step_ended(Step step, Seconds predicted, Seconds taken, std::uint64_t working_set,
                  std::uint64_t capacity, std::vector<PageId>& undo);

  State state() const { return state_; }
  std::uint32_t pauses() const { return pauses_; }
  bool open() const { return state_ == State::kOpen; }
  /// What a policy that asks it says of itself.
  Restraint restraint() const {
    return state_ == State::kOpen        ? Restraint::kNone
           : state_ == State::kThrashing ? Restraint::kThrashing
                                         : Restraint::kWrongPredictions;
  }

 private:
  void read(PageId page);

  GuardOptions options_;
  State state_ = State::kOpen;
  Step resume_at_ = 0;
  std::uint32_t pauses_ = 0;
  std::deque<PageId> unused_;         ///< the latest migrations that nobody has used
  std::vector<Step> last_crossing_;   ///< by page, plus one; 0: never
  std::vector<std::uint8_t> unread_;  ///< by page: not read since it crossed
  double migrated_ = 0;               ///< lately
  double migrated_before_ = 0;        ///< as of the step before: those had a step to be read in
  double useful_ = 0;                 ///< of them read
};

}  // namespace lehr::placement
