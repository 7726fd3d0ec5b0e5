// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/helpers.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <catch2/catch.hpp>

using namespace lehr;
using lehr::directory::Helpers;

TEST_CASE("helpers do every item once, and tell of those from the first on") {
  const std::uint32_t threads = GENERATE(1U, 2U, 5U);
  Helpers helpers(threads);
  for (const std::size_t count : {0U, 1U, 2U, 7U, 300U}) {
    std::vector<std::atomic<int>> times(count);
    std::vector<std::size_t> told;
    helpers.run(
        count, 64 * kMiB, [&](std::size_t i) { ++times[i]; },
        [&](std::size_t n) {
          for (std::size_t i = 0; i < n; ++i) CHECK(times[i] == 1);
          told.push_back(n);
        });
    for (const auto& t : times) CHECK(t == 1);
    CHECK(std::is_sorted(told.begin(), told.end(), std::less_equal<>()));
    if (count > 0) CHECK(told.back() == count);
    CHECK(told.empty() == (count == 0));
  }
  CHECK(helpers.started() == threads - 1);
}

TEST_CASE("helpers work at the same time") {
  // Each item waits for all the others to have begun: one thread alone would wait for ever.
  Helpers helpers(4);
  std::mutex mutex;
  std::condition_variable changed;
  for (int round = 0; round < 50; ++round) {
    std::size_t begun = 0;
    helpers.run(4, 64 * kMiB, [&](std::size_t) {
      std::unique_lock lock(mutex);
      ++begun;
      changed.notify_all();
      changed.wait(lock, [&] { return begun == 4; });
    });
  }
  CHECK(helpers.started() == 3);
}

TEST_CASE("no thread is started for little work, and as many as there is work for") {
  Helpers helpers(8);
  std::atomic<int> done{0};
  const auto work = [&](std::size_t) { ++done; };
  const auto self = std::this_thread::get_id();
  helpers.run(100, 100 * kKiB, [&](std::size_t i) {
    CHECK(std::this_thread::get_id() == self);
    work(i);
  });
  CHECK(helpers.started() == 0);
  helpers.run(1, kGiB, work);
  CHECK(helpers.started() == 0);
  helpers.run(100, kMiB, work);
  CHECK(helpers.started() == 4);
  helpers.run(3, kGiB, work);
  CHECK(helpers.started() == 4);
  helpers.run(100, kGiB, work);
  CHECK(helpers.started() == 7);
  CHECK(done == 304);
  CHECK(Helpers(0).started() == 0);
}
