// SPDX-License-Identifier: Apache-2.0
// The free list of lfu-importance: who is on it, and what an eviction and a sweep cost, counted in
// pages looked at.
#include "placement/cold_list.hpp"

#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

namespace lehr::placement {
namespace {

constexpr std::uint32_t kSlices = 8;

/// Scores by page, as a policy's columns would give them.
struct Pages {
  std::vector<std::uint16_t> score;
  std::vector<std::uint16_t> guard;
  ColdList list;

  explicit Pages(std::uint32_t n, std::uint64_t seed = 1) : score(n), guard(n, 0) {
    Rng rng(seed);
    list.reset(n);
    for (PageId p = 0; p < n; ++p) {
      score[p] = static_cast<std::uint16_t>(1000 + rng.below(60'000));
      list.keep(p);
    }
  }
  void slice(double share = 0.125) {
    list.sweep(kSlices, share, [this](std::span<const PageId> pages, std::span<std::uint16_t> out) {
      for (std::size_t i = 0; i < pages.size(); ++i) out[i] = score[pages[i]];
    });
  }
  void sweep() {
    for (std::uint32_t i = 0; i < kSlices; ++i) slice();
  }
  std::vector<PageId> take(std::size_t count) {
    std::vector<PageId> taken;
    while (taken.size() < count) {
      const PageId p = list.coldest(guard);
      if (p == kNoPage) break;
      list.leave(p);
      taken.push_back(p);
    }
    return taken;
  }
};

TEST_CASE("cold list: the coldest leave in order, those held or read since do not") {
  Pages pages(4000);
  pages.sweep();
  std::vector<PageId> order(4000);
  for (PageId p = 0; p < 4000; ++p) order[p] = p;
  std::sort(order.begin(), order.end(),
            [&](PageId a, PageId b) { return pages.score[a] < pages.score[b]; });
  pages.guard[order[0]] = 1;
  pages.list.touched(order[2]);
  const std::vector<PageId> taken = pages.take(3);
  REQUIRE(taken.size() == 3);
  const auto score_of = [&](PageId p) { return pages.score[p]; };
  CHECK(score_of(taken[0]) == score_of(order[1]));
  CHECK(score_of(taken[1]) == score_of(order[3]));
  CHECK(score_of(taken[2]) == score_of(order[4]));
}

TEST_CASE("cold list: an eviction looks at two entries at most, however many pages there are") {
  const std::uint32_t n = GENERATE(1'000U, 10'000U, 200'000U);
  CAPTURE(n);
  Pages pages(n);
  pages.sweep();
  const std::uint64_t before = pages.list.searched();
  const std::size_t taken = pages.take(50).size();
  CHECK(taken == 50);
  CHECK(pages.list.searched() - before <= 2 * taken);
}

TEST_CASE("cold list: the next list is made ahead of demand, a bounded part in each slice") {
  const std::uint32_t n = GENERATE(1'000U, 100'000U);
  CAPTURE(n);
  Pages pages(n);
  pages.slice();  // the first list is made at once: nothing is known of scores
  CHECK(pages.list.swept() == n);
  Rng rng(3);
  std::size_t dry = 0;
  PageId next = 0;
  for (int step = 0; step < 200; ++step) {
    for (std::uint32_t layer = 0; layer < kSlices; ++layer) {
      const std::uint64_t swept = pages.list.swept();
      pages.slice();
      REQUIRE(pages.list.swept() - swept <= n / kSlices + 1);
      // Demand of an eightieth of the pages a step, and as many that come and are read.
      const std::size_t demand = n / 80 / kSlices;
      const std::vector<PageId> taken = pages.take(demand);
      dry += demand - taken.size();
      for (const PageId p : taken) {
        pages.score[p] = static_cast<std::uint16_t>(1000 + rng.below(60'000));
        pages.list.keep(p);
      }
      for (std::size_t i = 0; i < 2 * demand; ++i, next = (next + 1) % n) {
        pages.list.touched(next);
        pages.score[next] = static_cast<std::uint16_t>(std::min(65'000, pages.score[next] + 5000));
      }
    }
  }
  CHECK(dry == 0);
}

TEST_CASE("cold list: threshold and entries follow the residents") {
  // Against a plain sort, while pages come, go and are read between slices: what is taken lies
  // among the coldest quarter of those that were there when the sweep began.
  Pages pages(2000, 5);
  Rng rng(9);
  pages.sweep();
  for (int round = 0; round < 100; ++round) {
    (void)pages.take(400);  // runs dry: sweeps begin
    for (PageId p = 0; p < 2000; ++p) {
      if (!pages.list.contains(p)) pages.list.keep(p);
    }
    for (std::uint32_t i = 0; i < kSlices; ++i) {
      pages.slice();
      const PageId p = rng.below(2000);
      if (pages.list.contains(p)) pages.list.leave(p);
      const PageId q = rng.below(2000);
      if (!pages.list.contains(q)) pages.list.keep(q);
    }
    std::vector<std::uint16_t> sorted;
    for (PageId p = 0; p < 2000; ++p) {
      if (pages.list.contains(p)) sorted.push_back(pages.score[p]);
    }
    std::sort(sorted.begin(), sorted.end());
    const std::uint16_t quarter = sorted[sorted.size() / 4 + 100];
    for (const PageId p : pages.take(100)) REQUIRE(pages.score[p] <= quarter);
  }
}

TEST_CASE("cold list: any page is found where one is free, none where none is") {
  Pages pages(100);
  pages.guard.assign(100, 1);
  CHECK(pages.list.any(pages.guard) == kNoPage);
  pages.guard[41] = 0;
  CHECK(pages.list.any(pages.guard) == 41);
  pages.list.leave(41);
  CHECK(pages.list.any(pages.guard) == kNoPage);
  CHECK(pages.list.coldest(pages.guard) == kNoPage);
}

}  // namespace
}  // namespace lehr::placement
