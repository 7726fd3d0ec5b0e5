// SPDX-License-Identifier: Apache-2.0
#include "placement/block_cache.hpp"

#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

namespace lehr::placement {
namespace {

/// Owns what RequestBlocks borrows.
struct Trace {
  std::vector<std::uint64_t> first{0};
  std::vector<PageId> blocks;
  std::vector<std::uint64_t> length;
  std::uint32_t distinct = 0;
  std::uint32_t block_tokens = 16;

  void add(const std::vector<PageId>& request, std::uint64_t tokens) {
    for (const PageId b : request) {
      blocks.push_back(b);
      distinct = std::max(distinct, b + 1);
    }
    first.push_back(blocks.size());
    length.push_back(tokens);
  }
  void add(const std::vector<PageId>& request) { add(request, request.size() * block_tokens); }
  RequestBlocks view() const { return {first, blocks, length, distinct, block_tokens}; }
};

BlockCacheRun run(const Trace& trace, const std::string& policy, std::uint32_t capacity,
                  EvictForm form) {
  const auto descriptor = find_policy(policy);
  REQUIRE(descriptor);
  const auto out = replay_blocks(trace.view(), **descriptor, {}, {{capacity}}, form);
  REQUIRE(out);
  REQUIRE(out->size() == 1);
  return out->front();
}

TEST_CASE("block cache: lru by hand, any block may leave") {
  Trace t;
  t.add({0, 1, 2});   // fills the cache
  t.add({3});         // evicts 0
  t.add({0, 1, 2});   // 0 misses and evicts 1, which misses and evicts 2, which misses
  t.add({0, 1}, 20);  // both hit; the second block is a quarter full
  const BlockCacheRun r = run(t, "lru", 3, EvictForm::kAny);
  CHECK(r.all.visits.blocks == 9);
  CHECK(r.all.visits.tokens == 7 * 16 + 20);
  CHECK(r.all.hits.blocks == 2);
  CHECK(r.all.hits.tokens == 20);
  CHECK(r.all.prefix_hits.blocks == 2);
  CHECK(r.last_half.visits.blocks == 5);
  CHECK(r.last_half.hits.blocks == 2);
}

TEST_CASE("block cache: a radix cache drops leaves first and keeps the prefix", "[control]") {
  Trace t;
  t.add({0, 1, 2});
  t.add({3});  // any: evicts 0; leaf: evicts 2, for 0 and 1 have descendants
  t.add({0, 1, 2});
  CHECK(run(t, "lru", 3, EvictForm::kAny).all.prefix_hits.blocks == 0);
  const BlockCacheRun leaf = run(t, "lru", 3, EvictForm::kLeaf);
  CHECK(leaf.all.hits.blocks == 2);
  CHECK(leaf.all.prefix_hits.blocks == 2);
}

TEST_CASE("block cache: the prefix rule counts nothing behind a gap") {
  Trace t;
  t.add({0, 1, 2, 3});
  t.add({4});           // evicts 0
  t.add({0, 1, 2, 3});  // with room for five: 0 misses (evicting 1), 1 misses (evicting 2) ...
  t.add({9, 4});        // 9 misses, 4 may hit, but lies behind it
  const BlockCacheRun r = run(t, "static", 5, EvictForm::kAny);
  // Static keeps 0 to 4: the third request hits whole, the fourth hits 4 behind a miss.
  CHECK(r.all.hits.blocks == 5);
  CHECK(r.all.prefix_hits.blocks == 4);
}

TEST_CASE("block cache: min knows the future") {
  Trace t;
  t.add({0});
  t.add({1});
  t.add({2});  // lru of two evicts 0 here, min bypasses 2
  t.add({0});
  t.add({1});
  CHECK(run(t, "lru", 2, EvictForm::kAny).all.hits.blocks == 0);
  CHECK(run(t, "min", 2, EvictForm::kAny).all.hits.blocks == 2);
}

TEST_CASE("block cache: an order that bypasses learns a chain in the leaf form") {
  // 0-1-2 is read again and again while 9.. come once: frequency has to let the chain in.
  Trace t;
  t.add({3, 4, 5});
  for (PageId i = 0; i < 20; ++i) {
    t.add({0, 1, 2});
    t.add({20 + i});
  }
  for (const char* name : {"w-tinylfu", "histogram", "greedy-density", "lirs"}) {
    CAPTURE(name);
    CHECK(run(t, name, 4, EvictForm::kLeaf).last_half.prefix_hits.blocks >= 20);
  }
}

/// The leaf form played with sets: an LRU stamp a block, the oldest without a resident child
/// leaves.
class PlainRadix {
 public:
  PlainRadix(PageId blocks, std::size_t capacity)
      : stamp_(blocks, -1), parent_(blocks, kNoPage), capacity_(capacity) {}

  std::uint64_t hits() const { return hits_; }

  void request(std::span<const PageId> blocks) {
    PageId before = kNoPage;
    bool start = true;
    for (const PageId b : blocks) {
      const bool reachable = std::exchange(start, false) || before != kNoPage;
      if (stamp_[b] >= 0) {
        ++hits_;
      } else if (!reachable || !make_room(before)) {
        before = kNoPage;
        continue;
      } else {
        parent_[b] = before;
        ++residents_;
      }
      stamp_[b] = clock_++;
      before = b;
    }
  }

 private:
  bool is_leaf(PageId block) const {
    for (PageId c = 0; c < stamp_.size(); ++c) {
      if (stamp_[c] >= 0 && parent_[c] == block) return false;
    }
    return true;
  }

  bool make_room(PageId held) {
    if (residents_ < capacity_) return true;
    PageId oldest = kNoPage;
    for (PageId v = 0; v < stamp_.size(); ++v) {
      if (stamp_[v] < 0 || v == held || !is_leaf(v)) continue;
      if (oldest == kNoPage || stamp_[v] < stamp_[oldest]) oldest = v;
    }
    if (oldest == kNoPage) return false;
    stamp_[oldest] = -1;
    parent_[oldest] = kNoPage;
    --residents_;
    return true;
  }

  std::vector<std::int64_t> stamp_;  ///< -1: not resident
  std::vector<PageId> parent_;
  std::size_t capacity_;
  std::size_t residents_ = 0;
  std::int64_t clock_ = 0;
  std::uint64_t hits_ = 0;
};

std::uint64_t radix_hits(const Trace& t, std::size_t capacity) {
  PlainRadix radix(t.distinct, capacity);
  for (std::size_t r = 0; r < t.length.size(); ++r) {
    radix.request(std::span(t.blocks).subspan(t.first[r], t.first[r + 1] - t.first[r]));
  }
  return radix.hits();
}

TEST_CASE("block cache: random radix trees against a naive one", "[differential]") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 13));
  const std::uint32_t capacity = GENERATE(1U, 3U, 8U, 20U);
  CAPTURE(seed, capacity);
  Rng rng(seed);
  Trace t;
  constexpr PageId kBlocks = 60;
  std::vector<PageId> parent(kBlocks, kNoPage);  // a random tree over the ids
  for (PageId b = 6; b < kBlocks; ++b) parent[b] = rng.below(b);
  for (int r = 0; r < 120; ++r) {
    std::vector<PageId> path;
    for (PageId b = rng.below(kBlocks); b != kNoPage; b = parent[b]) path.insert(path.begin(), b);
    t.add(path);
  }
  CHECK(run(t, "lru", capacity, EvictForm::kLeaf).all.hits.blocks == radix_hits(t, capacity));
}

TEST_CASE("block cache: a roomy cache misses each block once, min never misses more",
          "[contract]") {
  Rng rng(8);
  Trace t;
  for (int r = 0; r < 200; ++r) {
    std::vector<PageId> path;
    PageId b = rng.below(3);
    for (int i = 0; i < 4; ++i) {
      path.push_back(b);
      b = 3 * b + 3 + rng.below(3);
    }
    t.add(path);
  }
  for (const PolicyDescriptor* d : policies()) {
    if (d->make_replacement == nullptr) continue;
    for (const EvictForm form : {EvictForm::kAny, EvictForm::kLeaf}) {
      CAPTURE(d->name);
      CHECK(run(t, d->name, 1000, form).all.hits.blocks <= 800);
      const std::uint64_t min = run(t, "min", 20, EvictForm::kAny).all.hits.blocks;
      CHECK(run(t, d->name, 20, form).all.hits.blocks <= min);
    }
    std::vector<bool> seen(t.distinct, false);
    std::uint64_t again = 0;
    for (const PageId b : t.blocks) {
      again += seen[b] ? 1 : 0;
      seen[b] = true;
    }
    if (std::string(d->name) !=
        "min") {  // min does not keep what is never read again: no miss more
      CHECK(run(t, d->name, 1000, EvictForm::kLeaf).all.hits.blocks == again);
    }
  }
}

TEST_CASE("block cache: contradictory requests are refused", "[hostile]") {
  const auto lru = find_policy("lru");
  REQUIRE(lru);
  Trace good;
  good.add({0, 1});
  good.add({2});
  const auto refused = [&](const Trace& t, std::uint32_t capacity, const std::string& word) {
    const auto out = replay_blocks(t.view(), **lru, {}, {{capacity}}, EvictForm::kAny);
    REQUIRE_FALSE(out);
    CHECK(out.error().what.find(word) != std::string::npos);
  };
  CHECK(replay_blocks(good.view(), **lru, {}, {{2U}}, EvictForm::kAny));
  refused(good, 0, "no blocks");
  Trace t = good;
  t.distinct = 2;
  refused(t, 2, "block id 2");
  t = good;
  t.first = {0, 3, 2};
  t.blocks = {0, 1};
  refused(t, 2, "fall");
  t = good;
  t.first.pop_back();
  refused(t, 2, "offsets");
  t = good;
  t.block_tokens = 0;
  refused(t, 2, "no tokens");
  const auto none = find_policy("none");
  REQUIRE(none);
  CHECK_FALSE(replay_blocks(good.view(), **none, {}, {{2U}}, EvictForm::kAny));
  CHECK_FALSE(replay_blocks(good.view(), **lru, {{"x", 1.0}}, {{2U}}, EvictForm::kAny));
  CHECK(replay_blocks(Trace().view(), **lru, {}, {{2U}}, EvictForm::kAny));  // no requests: no hits
}

}  // namespace
}  // namespace lehr::placement
