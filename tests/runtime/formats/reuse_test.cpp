// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/reuse.hpp"

#include <algorithm>
#include <list>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"

namespace lehr::tools {
namespace {

TEST_CASE("reuse distance counts the other items between, once each") {
  ReuseDistance reuse(3);
  CHECK_FALSE(reuse.access(0));  // 0
  CHECK_FALSE(reuse.access(1));  // 0 1
  CHECK(reuse.access(1) == 0U);  // 0 1 1
  CHECK(reuse.access(0) == 1U);  // 0 1 1 0
  CHECK_FALSE(reuse.access(2));  // 0 1 1 0 2
  CHECK(reuse.access(1) == 2U);  // 0 1 1 0 2 1
  CHECK(reuse.access(1) == 0U);
  CHECK(reuse.access(2) == 1U);
}

/// LRU as a list, searched from the front.
struct Stack {
  std::list<std::uint32_t> order;
  std::optional<std::uint32_t> access(std::uint32_t item) {
    std::optional<std::uint32_t> depth;
    const auto found = std::find(order.begin(), order.end(), item);
    if (found != order.end()) {
      depth = static_cast<std::uint32_t>(std::distance(order.begin(), found));
      order.erase(found);
    }
    order.push_front(item);
    return depth;
  }
};

TEST_CASE("reuse distance equals the depth in an LRU stack, also past renumbering") {
  const auto seed = GENERATE(1U, 2U, 3U);
  Rng rng(seed);
  const std::uint32_t items = 1 + rng.below(60);
  ReuseDistance reuse(items);
  Stack stack;
  for (int i = 0; i < 10000; ++i) {  // several times the positions that it keeps
    const std::uint32_t item = std::min(rng.below(items), rng.below(items));
    REQUIRE(reuse.access(item) == stack.access(item));
  }
}

TEST_CASE("percentiles and LRU hits follow from the distances") {
  ReuseProfile profile(4);
  for (const std::uint32_t item : {0U, 1U, 2U, 0U, 0U, 1U})
    profile.access(item);  // distances 2 0 2
  CHECK(profile.accesses() == 6);
  CHECK(profile.first_accesses() == 3);
  CHECK(profile.percentile(0.1) == 0U);
  CHECK(profile.percentile(0.34) == 2U);
  CHECK(profile.percentile(1.0) == 2U);
  CHECK(profile.lru_hit_ratio(0) == 0);
  CHECK(profile.lru_hit_ratio(1) == Approx(1.0 / 6));
  CHECK(profile.lru_hit_ratio(2) == Approx(1.0 / 6));
  CHECK(profile.lru_hit_ratio(3) == Approx(3.0 / 6));
  CHECK(profile.lru_hit_ratio(100) == Approx(3.0 / 6));
  CHECK_FALSE(ReuseProfile(1).percentile(0.5));
}

}  // namespace
}  // namespace lehr::tools
