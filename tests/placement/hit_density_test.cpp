// SPDX-License-Identifier: Apache-2.0
// What hit-density is for: keeping whole what comes back, and passing what does not. Each with a
// control, an order that fails at it.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/block_cache.hpp"

namespace lehr::placement {
namespace {

/// Requests of one block each.
double hit_share(const std::string& policy, const std::vector<PageId>& visits,
                 std::uint32_t distinct, std::uint32_t capacity) {
  std::vector<std::uint64_t> first(visits.size() + 1);
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = i;
  const std::vector<std::uint64_t> length(visits.size(), 64);
  const RequestBlocks trace{first, visits, length, distinct, 64};
  const auto descriptor = find_policy(policy);
  REQUIRE(descriptor);
  const std::uint32_t capacities[] = {capacity};
  const auto runs = replay_blocks(trace, **descriptor, {}, capacities, EvictForm::kAny);
  REQUIRE(runs);
  const BlockHits& late = runs->front().last_half;
  return static_cast<double>(late.hits.blocks) / static_cast<double>(late.visits.blocks);
}

TEST_CASE("hit-density keeps its share of a loop that does not fit") {
  // 100 blocks for 60 slots: the best is to keep 60 (less one that the visit itself may take).
  std::vector<PageId> loop;
  for (std::uint32_t i = 0; i < 40'000; ++i) loop.push_back(i % 100);
  CHECK(hit_share("hit-density", loop, 100, 60) > 0.55);
  CHECK(hit_share("lru", loop, 100, 60) == 0);  // the control
}

TEST_CASE("hit-density lets blocks pass that are read once") {
  // Every other visit is to one of 50 blocks, the rest are never seen again.
  std::vector<PageId> visits;
  Rng rng(7);
  std::uint32_t fresh = 50;
  for (std::uint32_t i = 0; i < 40'000; ++i) {
    visits.push_back(i % 2 == 0 ? rng.below(50) : fresh++);
  }
  CHECK(hit_share("hit-density", visits, fresh, 50) > 0.48);  // of 0.5
  CHECK(hit_share("lru", visits, fresh, 50) < 0.35);          // the control
}

TEST_CASE("hit-density keeps up when the hot set moves") {
  std::vector<PageId> visits;
  Rng rng(9);
  for (std::uint32_t i = 0; i < 40'000; ++i) {
    const std::uint32_t base = i < 30'000 ? 0 : 200;
    visits.push_back(base + rng.below(40));
  }
  CHECK(hit_share("hit-density", visits, 240, 45) > 0.98);
  CHECK(hit_share("static", visits, 240, 45) < 0.6);  // the control: what came first stays
}

TEST_CASE("What continues a long conversation outranks what begins a new one") {
  // Chains of two blocks that both come back at each turn, with one new block a turn; between the
  // turns, conversations that end after their first request.
  std::vector<std::uint64_t> first{0};
  std::vector<PageId> blocks;
  std::uint32_t next = 0;
  Rng rng(3);
  std::vector<std::vector<PageId>> open(8);
  for (std::uint32_t r = 0; r < 8'000; ++r) {
    if (r % 2 == 0) {
      for (int i = 0; i < 6; ++i) blocks.push_back(next++);
    } else {
      std::vector<PageId>& chain = open[rng.below(8)];
      if (chain.size() >= 12) chain.clear();
      chain.push_back(next++);
      blocks.insert(blocks.end(), chain.begin(), chain.end());
    }
    first.push_back(blocks.size());
  }
  const std::vector<std::uint64_t> length(first.size() - 1, 64 * 16);
  const RequestBlocks trace{first, blocks, length, next, 64};
  const auto hits = [&](const char* name) {
    const std::uint32_t capacities[] = {60};
    const auto runs = replay_blocks(trace, **find_policy(name), {}, capacities, EvictForm::kAny);
    REQUIRE(runs);
    return runs->front().last_half.hits.blocks;
  };
  const std::uint64_t best = hits("min");
  const std::uint64_t own = hits("hit-density");
  CHECK(own * 100 > best * 75);
  CHECK(hits("lru") < own);  // the control
}

}  // namespace
}  // namespace lehr::placement
