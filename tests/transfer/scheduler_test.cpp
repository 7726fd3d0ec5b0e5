// SPDX-License-Identifier: Apache-2.0
#include "transfer/scheduler.hpp"

#include <catch2/catch.hpp>

using namespace lehr;
using namespace lehr::transfer;

namespace {

constexpr auto kUrgent = Urgency::kUrgent;
constexpr auto kBackground = Urgency::kBackground;

/// 1 GB/s and 1 ms: 1,000,000 bytes of background depth.
LinkLimits limits() {
  LinkLimits l;
  l.bytes_per_second = 1e9;
  l.depth_seconds = 1e-3;
  l.urgent_depth = 4;
  return l;
}

std::vector<std::uint64_t> start_all(Scheduler& s, std::int64_t now = 0) {
  std::vector<std::uint64_t> ids;
  while (const auto item = s.next(0, now)) ids.push_back(item->id);
  return ids;
}

}  // namespace

TEST_CASE("Background work in flight stays below a millisecond of the link") {
  Scheduler s({limits()});
  for (std::uint64_t i = 0; i < 10; ++i) s.enqueue(0, {i, 300'000, kBackground});
  CHECK(start_all(s) == std::vector<std::uint64_t>{0, 1, 2});
  CHECK(s.load(0).in_flight == 900'000);
  s.finished(0, 300'000);
  CHECK(start_all(s) == std::vector<std::uint64_t>{3});
}

TEST_CASE("One job larger than the depth moves alone") {
  Scheduler s({limits()});
  s.enqueue(0, {1, 5'000'000, kBackground});
  s.enqueue(0, {2, 5'000'000, kBackground});
  CHECK(start_all(s) == std::vector<std::uint64_t>{1});
  s.finished(0, 5'000'000);
  CHECK(start_all(s) == std::vector<std::uint64_t>{2});
}

TEST_CASE("An urgent job overtakes queued background jobs, and the full depth") {
  Scheduler s({limits()});
  for (std::uint64_t i = 0; i < 5; ++i) s.enqueue(0, {i, 500'000, kBackground});
  CHECK(start_all(s) == std::vector<std::uint64_t>{0, 1});
  s.enqueue(0, {100, 500'000, kUrgent});
  CHECK(start_all(s) == std::vector<std::uint64_t>{100});
  s.finished(0, 500'000);
  // Three halves are still in flight less one: background waits until it fits.
  CHECK(start_all(s).empty());
  s.finished(0, 500'000);
  CHECK(start_all(s) == std::vector<std::uint64_t>{2});
}

TEST_CASE("Urgent depth counts jobs where that is more link time") {
  Scheduler s({limits()});
  for (std::uint64_t i = 0; i < 6; ++i) s.enqueue(0, {i, 900'000, kUrgent});
  CHECK(start_all(s).size() == 4);
}

TEST_CASE("A step's byte budget holds back background work, and debt is paid") {
  LinkLimits l = limits();
  l.step_budget = 100;
  Scheduler s({l});
  for (std::uint64_t i = 0; i < 6; ++i) s.enqueue(0, {i, 40, kBackground});
  CHECK(start_all(s) == std::vector<std::uint64_t>{0, 1});
  CHECK(s.load(0).budget_left == 20);
  // Urgent work is not held back, but paid for: 20 - 90 = -70, then 100 - 70 = 30.
  s.enqueue(0, {50, 90, kUrgent});
  CHECK(start_all(s) == std::vector<std::uint64_t>{50});
  s.begin_step();
  CHECK(s.load(0).budget_left == 30);
  CHECK(start_all(s).empty());
  s.begin_step();
  CHECK(start_all(s) == std::vector<std::uint64_t>{2, 3});
}

TEST_CASE("A job larger than a whole budget takes a fresh one") {
  LinkLimits l = limits();
  l.step_budget = 100;
  Scheduler s({l});
  s.enqueue(0, {1, 250, kBackground});
  s.enqueue(0, {2, 10, kBackground});
  CHECK(start_all(s) == std::vector<std::uint64_t>{1});
  s.begin_step();  // -150 + 100
  CHECK(start_all(s).empty());
  s.begin_step();
  CHECK(s.load(0).budget_left == 50);
  CHECK(start_all(s) == std::vector<std::uint64_t>{2});
}

TEST_CASE("A full queue pushes back with a reason, urgent work passes") {
  LinkLimits l = limits();
  l.queue_limit = 100;
  Scheduler s({l});
  CHECK(s.admit(0, 500, kBackground));  // an empty queue takes one of any size
  s.enqueue(0, {1, 60, kBackground});
  CHECK(s.admit(0, 40, kBackground));
  CHECK(s.admit(0, 41, kBackground).error().reason == Reason::kLowerTierBusy);
  CHECK(s.admit(0, 41, kUrgent));
}

TEST_CASE("Pacing and staggering hold back background work only") {
  Scheduler s({limits()});
  s.hold_background(0, 1000);
  s.enqueue(0, {1, 10, kBackground});
  CHECK(start_all(s, 999).empty());
  s.enqueue(0, {2, 10, kUrgent});
  CHECK(start_all(s, 999) == std::vector<std::uint64_t>{2});
  CHECK(start_all(s, 1000) == std::vector<std::uint64_t>{1});
  s.set_share(0, 0.25);
  for (std::uint64_t i = 10; i < 20; ++i) s.enqueue(0, {i, 100'000, kBackground});
  CHECK(start_all(s, 1000) == std::vector<std::uint64_t>{10, 11});
}

TEST_CASE("Undone and removed items leave exact sums") {
  LinkLimits l = limits();
  l.step_budget = 1000;
  Scheduler s({l});
  s.enqueue(0, {1, 10, kBackground});
  s.enqueue(0, {2, 20, kBackground});
  const auto first = s.next(0, 0);
  REQUIRE(first);
  s.undo(0, *first);
  CHECK(s.load(0).budget_left == 1000);
  CHECK(s.load(0).waiting == 30);
  CHECK(s.load(0).in_flight == 0);
  CHECK(s.remove(0, 2));
  CHECK_FALSE(s.remove(0, 2));
  CHECK(start_all(s) == std::vector<std::uint64_t>{1});
  CHECK(s.load(0).waiting == 0);
  CHECK(s.load(0).peak_waiting_jobs == 2);
}

TEST_CASE("A share of a link is a share of its rate, with one depth's time ahead at most") {
  LinkLimits l = limits();
  l.depth_seconds = 1e-2;
  Scheduler s({l});
  const double share = GENERATE(0.5, 0.1);
  s.set_share(0, share);
  for (std::uint64_t i = 0; i < 5000; ++i) s.enqueue(0, {i, 100'000, kBackground});
  std::uint64_t bytes = 0;
  for (std::int64_t now = 0; now < 1'000'000'000; now += 100'000) {
    while (const auto item = s.next(0, now)) {
      bytes += item->bytes;
      s.finished(0, item->bytes);
    }
  }
  // One second at 1 GB/s; 10 ms ahead, and one job that was begun.
  const double whole = 1e9 * share;
  CHECK(static_cast<double>(bytes) <= whole * 1.01 + 100'000);
  CHECK(static_cast<double>(bytes) >= whole * 0.99);
  // Urgent work is not paced.
  s.enqueue(0, {9999, 100'000, kUrgent});
  CHECK(s.next(0, 999'900'000)->id == 9999);
}

TEST_CASE("What could not start has used no share of the rate") {
  LinkLimits l = limits();
  Scheduler s({l});
  s.set_share(0, 0.1);
  for (int round = 0; round < 100; ++round) {
    s.enqueue(0, {1, 100'000, kBackground});
    const auto item = s.next(0, 0);
    REQUIRE(item);
    s.undo(0, *item);
    REQUIRE(s.remove(0, 1));
  }
}

TEST_CASE("Links with an allowed slow-down follow the measured one, others do not") {
  LinkLimits bound = limits();
  bound.allowed_slowdown = 0.01;
  Scheduler s({bound, limits()});
  s.measured_slowdown(0.05);
  CHECK(s.share(0) == 1.0);  // it moved nothing, so it is not the cause
  for (LinkId link = 0; link < 2; ++link) {
    s.enqueue(link, {1, 100, kBackground});
    REQUIRE(s.next(link, 0));
  }
  s.measured_slowdown(0.05);
  CHECK(s.share(0) < 0.5);
  CHECK(s.share(1) == 1.0);
  const double low = s.share(0);
  s.measured_slowdown(0.0);
  CHECK(s.share(0) == low);  // nothing moved since
  s.enqueue(0, {2, 100, kBackground});
  REQUIRE(s.next(0, 1'000'000'000));
  s.measured_slowdown(0.0);
  CHECK(s.share(0) > low);
}

TEST_CASE("Devices that share a medium start background work in their own phase") {
  LinkLimits l = limits();
  l.stagger_devices = 2;
  l.stagger_device = 1;
  l.stagger_phase = 10e-3;
  Scheduler s({l});
  s.enqueue(0, {1, 100, kBackground});
  CHECK_FALSE(s.next(0, 0));
  CHECK_FALSE(s.next(0, 9'999'999));
  s.enqueue(0, {2, 100, kUrgent});
  CHECK(s.next(0, 0)->id == 2);
  CHECK(s.next(0, 10'000'000)->id == 1);
}
