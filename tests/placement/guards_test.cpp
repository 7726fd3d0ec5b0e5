// SPDX-License-Identifier: Apache-2.0
#include "placement/guards.hpp"

#include <limits>

#include <catch2/catch.hpp>

namespace lehr::placement {
namespace {

using State = MigrationGuard::State;

TEST_CASE("A prediction 15 % off is within the limit, 16 % pauses and undoes what nobody used") {
  MigrationGuard guard;
  std::vector<PageId> undo;
  for (PageId p = 1; p <= 7; ++p) guard.crossed(p, 0);
  guard.used(6);

  guard.step_ended(0, 1.15, 1.0, 1, 10, undo);
  CHECK(guard.state() == State::kOpen);
  CHECK(undo.empty());

  guard.step_ended(1, 1.16, 1.0, 1, 10, undo);
  CHECK(guard.state() == State::kRecalibrating);
  // The latest five were 3 to 7; 6 has been read. 1 and 2 are too old.
  CHECK(undo == std::vector<PageId>{7, 5, 4, 3});
  CHECK_FALSE(guard.may_cross(9, 1, 100));
}

TEST_CASE("Without the limit the same prediction would pass") {
  GuardOptions options;
  options.error_limit = 0.2;
  MigrationGuard guard(options);
  std::vector<PageId> undo;
  guard.crossed(1, 0);
  guard.step_ended(1, 1.16, 1.0, 1, 10, undo);
  CHECK(guard.state() == State::kOpen);
  CHECK(undo.empty());
}

TEST_CASE("Migrations resume once predictions have held for the pause") {
  MigrationGuard guard;
  std::vector<PageId> undo;
  guard.step_ended(10, 2, 1, 1, 10, undo);
  for (Step s = 11; s < 18; ++s) {
    guard.step_ended(s, 1, 1, 1, 10, undo);
    CHECK(guard.state() == State::kRecalibrating);
  }
  guard.step_ended(18, 1, 1, 1, 10, undo);
  CHECK(guard.state() == State::kOpen);
  CHECK(guard.pauses() == 1);
}

TEST_CASE("A wrong prediction in the pause makes it start anew") {
  MigrationGuard guard;
  std::vector<PageId> undo;
  guard.step_ended(10, 2, 1, 1, 10, undo);
  guard.step_ended(15, 2, 1, 1, 10, undo);
  guard.step_ended(18, 1, 1, 1, 10, undo);
  CHECK(guard.state() == State::kRecalibrating);
  guard.step_ended(23, 1, 1, 1, 10, undo);
  CHECK(guard.state() == State::kOpen);
}

TEST_CASE("Times that are no numbers count as wrong") {
  const double bad = GENERATE(0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity());
  MigrationGuard guard;
  std::vector<PageId> undo;
  guard.step_ended(0, bad, 1, 1, 10, undo);
  CHECK(guard.state() == State::kRecalibrating);
}

/// Ten pages migrate in each of two steps, and `read` of the first ten are read in the second.
MigrationGuard after_two_steps(PageId read, std::uint64_t working_set, double useful = 0.5) {
  GuardOptions options;
  options.useful = useful;
  MigrationGuard guard(options);
  std::vector<PageId> undo;
  for (PageId p = 0; p < 10; ++p) guard.crossed(p, 0);
  guard.step_ended(0, 1, 1, working_set, 10, undo);
  CHECK(guard.open());  // nothing is known yet
  for (PageId p = 0; p < read; ++p) guard.used(p);
  for (PageId p = 10; p < 20; ++p) guard.crossed(p, 1);
  guard.step_ended(1, 1, 1, working_set, 10, undo);
  return guard;
}

TEST_CASE("Migrations that leave unread while the working set exceeds HBM stop, and it is said") {
  const MigrationGuard guard = after_two_steps(4, 11);
  CHECK(guard.state() == State::kThrashing);
  CHECK_FALSE(guard.may_cross(100, 1, 100));
  CHECK(guard.restraint() == Restraint::kThrashing);
  CHECK(after_two_steps(4, 10).open());       // the working set fits
  CHECK(after_two_steps(6, 11).open());       // they are read: streaming, not thrashing
  CHECK(after_two_steps(4, 11, 0.0).open());  // control: the guard switched off
}

TEST_CASE("Thrashing ends with the working set, or is tried again after the pause") {
  std::vector<PageId> undo;
  MigrationGuard guard = after_two_steps(0, 11);
  guard.step_ended(2, 1, 1, 9, 10, undo);
  CHECK(guard.open());
  guard = after_two_steps(0, 11);
  for (Step s = 2; s < 9; ++s) {
    guard.step_ended(s, 1, 1, 11, 10, undo);
    CHECK_FALSE(guard.open());
  }
  guard.step_ended(9, 1, 1, 11, 10, undo);
  CHECK(guard.open());
}

TEST_CASE("No page crosses twice within the window unless its visits pay for it") {
  MigrationGuard guard;
  guard.crossed(3, 100);
  CHECK_FALSE(guard.may_cross(3, 101, 1.9));
  CHECK(guard.may_cross(3, 101, 2));
  CHECK_FALSE(guard.may_cross(3, 115, 1));
  CHECK(guard.may_cross(3, 116, 1));
  CHECK(guard.may_cross(4, 101, 1));  // control: another page
  guard.forget(3);
  CHECK(guard.may_cross(3, 101, 1));
}

}  // namespace
}  // namespace lehr::placement
