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

TEST_CASE("A working set larger than HBM stops promotions and says so; one that fits does not") {
  MigrationGuard guard;
  std::vector<PageId> undo;
  guard.step_ended(0, 1, 1, 10, 10, undo);
  CHECK(guard.may_cross(1, 0, 1));
  guard.step_ended(1, 1, 1, 11, 10, undo);
  CHECK(guard.state() == State::kThrashing);
  CHECK_FALSE(guard.may_cross(1, 1, 1));
  CHECK(std::string(guard.reason()).find("HBM holds") != std::string::npos);
  guard.step_ended(2, 1, 1, 9, 10, undo);
  CHECK(guard.may_cross(1, 2, 1));
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
