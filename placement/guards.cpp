// SPDX-License-Identifier: Apache-2.0
#include "placement/guards.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement {

bool MigrationGuard::may_cross(PageId page, Step now, double visits) const {
  if (state_ != State::kOpen) return false;
  if (page >= last_crossing_.size() || last_crossing_[page] == 0) return true;
  if (now + 1 - last_crossing_[page] >= options_.hysteresis_steps) return true;
  return visits >= options_.pays;
}

void MigrationGuard::crossed(PageId page, Step now) {
  if (page >= last_crossing_.size()) {
    last_crossing_.resize(std::max<std::size_t>(page + std::size_t{1}, 2 * last_crossing_.size()),
                          0);
    unread_.resize(last_crossing_.size(), 0);
  }
  last_crossing_[page] = now + 1;
  unread_[page] = 1;
  migrated_ += 1;
  unused_.push_back(page);
  if (unused_.size() > options_.rollback) unused_.pop_front();
}

void MigrationGuard::read(PageId page) {
  unread_[page] = 0;
  useful_ += 1;
  const auto at = std::find(unused_.begin(), unused_.end(), page);
  if (at != unused_.end()) unused_.erase(at);
}

void MigrationGuard::forget(PageId page) {
  const auto at = std::find(unused_.begin(), unused_.end(), page);
  if (at != unused_.end()) unused_.erase(at);
  if (page >= last_crossing_.size()) return;
  last_crossing_[page] = 0;
  unread_[page] = 0;
}

void MigrationGuard::step_ended(Step step, Seconds predicted, Seconds taken,
                                std::uint64_t working_set, std::uint64_t capacity,
                                std::vector<PageId>& undo) {
  const bool numbers =
      std::isfinite(predicted) && std::isfinite(taken) && predicted > 0 && taken > 0;
  const bool wrong = !numbers || std::abs(predicted - taken) > options_.error_limit * taken;
  // What does not fit can still be streamed through HBM, as long as it is read before it leaves.
  const bool too_large =
      static_cast<double>(working_set) > options_.thrash * static_cast<double>(capacity);
  const bool thrashing = too_large && useful_ < options_.useful * migrated_before_;
  constexpr double kLately = 0.9;
  migrated_before_ = migrated_ * kLately;
  migrated_ *= kLately;
  useful_ *= kLately;
  if (wrong && state_ != State::kRecalibrating) {
    undo.insert(undo.end(), unused_.rbegin(), unused_.rend());
    unused_.clear();
    state_ = State::kRecalibrating;
    resume_at_ = step + options_.pause_steps;
    ++pauses_;
    return;
  }
  if (state_ == State::kRecalibrating) {
    if (wrong) resume_at_ = step + options_.pause_steps;
    if (step < resume_at_) return;
  }
  if (thrashing && state_ == State::kOpen) {
    state_ = State::kThrashing;
    resume_at_ = step + options_.pause_steps;
    return;
  }
  if (state_ == State::kThrashing && too_large && step < resume_at_) return;
  if (state_ == State::kThrashing) migrated_ = migrated_before_ = useful_ = 0;  // judged afresh
  state_ = State::kOpen;
}

}  // namespace lehr::placement
