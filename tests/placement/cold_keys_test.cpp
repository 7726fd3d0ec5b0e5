// SPDX-License-Identifier: Apache-2.0
#include "placement/cold_keys.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "placement/key_scan.hpp"

namespace lehr::placement {
namespace {

/// Layers of sequences of pages whose keys are all known, and who lists of them what is asked for.
class Keeper {
 public:
  static constexpr std::uint32_t kLayers = 3;
  static constexpr std::uint32_t kSequences = 4;
  static constexpr std::uint32_t kUnit = 30;
  static constexpr PageId kPages = kLayers * kSequences * kUnit;

  explicit Keeper(std::uint64_t seed) : rng_(seed), key_(kPages, 0), in_(kPages, false) {
    keys_.reset(kLayers);
    keys_.reach(kPages - 1);
  }

  static std::uint32_t layer(PageId p) { return p / (kSequences * kUnit); }
  static std::uint32_t sequence(PageId p) { return p / kUnit % kSequences; }
  static PageId first(std::uint32_t layer, std::uint32_t sequence) {
    return (layer * kSequences + sequence) * kUnit;
  }
  double draw() { return std::floor(20 * rng_.uniform()); }  // with ties

  void set(PageId p) {
    in_[p] = true;
    key_[p] = draw();
    keys_.set(p, layer(p), sequence(p), key_[p]);
  }
  void erase(PageId p) {
    in_[p] = false;
    keys_.erase(p);
  }

  /// New keys for some sequences of a layer; the others do not run.
  void renew(std::uint32_t l) {
    keys_.begin_layer(l);
    for (std::uint32_t s = 0; s < kSequences; ++s) {
      if (rng_.below(3) == 0) continue;
      const double bound = draw() - 4;
      keys_.renew(l, s, bound);
      for (PageId p = first(l, s); p < first(l, s) + kUnit; ++p) {
        if (!in_[p]) continue;
        key_[p] = draw();
        if (key_[p] <= bound) keys_.list(p, l, s, key_[p]);
      }
    }
    keys_.end_layer();
  }

  /// Lists the pages up to the lowest key that was not listed.
  void more(std::uint32_t l, std::uint32_t s) {
    ++asked;
    double bound = ColdKeys::kAll;
    const auto each = [&](auto&& act) {
      for (PageId p = first(l, s); p < first(l, s) + kUnit; ++p) {
        if (in_[p] && !keys_.listed(p, l, s)) act(p);
      }
    };
    each([&](PageId p) { bound = std::min(bound, key_[p]); });
    each([&](PageId p) {
      if (key_[p] == bound) keys_.list_late(p, l, s, key_[p]);
    });
    keys_.raise(l, s, bound);
  }

  PageId found(std::span<const std::uint16_t> guard) {
    keys_.rewind();
    return keys_.lowest(guard, [&](std::uint32_t l, std::uint32_t s) { more(l, s); }).page;
  }
  PageId expected(std::span<const std::uint16_t> guard) const {
    PageId best = kNoPage;
    for (PageId p = 0; p < kPages; ++p) {
      if (in_[p] && guard[p] == 0 && (best == kNoPage || key_[p] < key_[best])) best = p;
    }
    return best;
  }
  std::uint32_t count() const {
    return static_cast<std::uint32_t>(std::count(in_.begin(), in_.end(), true));
  }
  const ColdKeys& keys() const { return keys_; }

  std::uint32_t asked = 0;

 private:
  Rng rng_;
  ColdKeys keys_;
  std::vector<double> key_;
  std::vector<bool> in_;
};

TEST_CASE("ColdKeys finds the lowest of all keys, of which few are listed") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  CAPTURE(seed);
  Rng rng(seed * 77);
  Keeper keeper(seed);
  std::vector<std::uint16_t> guard(Keeper::kPages, 0);
  std::uint32_t searches = 0;
  for (int round = 0; round < 6000; ++round) {
    const PageId p = rng.below(Keeper::kPages);
    switch (rng.below(8)) {
      case 0:
        keeper.renew(rng.below(Keeper::kLayers));
        break;
      case 1:
      case 2:
        keeper.erase(p);
        break;
      case 3:
        guard[p] = static_cast<std::uint16_t>(rng.below(2));
        break;
      default:
        keeper.set(p);
    }
    if (round % 5 != 0) continue;
    ++searches;
    REQUIRE(keeper.found(guard) == keeper.expected(guard));
    REQUIRE(keeper.keys().size() == keeper.count());
    REQUIRE(keeper.keys().contains(p) == (keeper.keys().inside()[p] != 0));
  }
  // Controls: more had to be listed at times, and mostly not.
  CHECK(keeper.asked > 20);
  CHECK(keeper.asked < 4 * searches);
}

TEST_CASE("ColdKeys: held pages are passed over until the next look, nothing left is none") {
  ColdKeys keys;
  keys.reset(1);
  const auto none = [](std::uint32_t, std::uint32_t) { FAIL("everything is listed"); };
  std::vector<std::uint16_t> guard(3, 0);
  CHECK(keys.lowest(guard, none).page == kNoPage);
  keys.set(0, 0, 0, 1.0);
  keys.set(1, 0, 0, 2.0);
  guard[0] = 1;
  CHECK(keys.lowest(guard, none).page == 1);
  guard[0] = 0;
  keys.rewind();
  CHECK(keys.lowest(guard, none).page == 0);
  guard = {1, 1, 0};
  CHECK(keys.lowest(guard, none).page == kNoPage);
}

TEST_CASE("ColdKeys: a page that nobody lists leaves when nothing else can") {
  ColdKeys keys;
  keys.reset(1);
  keys.begin_layer(0);
  keys.renew(0, 0, -10);
  keys.end_layer();
  keys.set(5, 0, 0, 3.0);  // above the bound: its unit would have to list it, and does not know it
  const auto more = [&](std::uint32_t l, std::uint32_t s) { keys.raise(l, s, ColdKeys::kAll); };
  std::vector<std::uint16_t> guard(6, 0);
  CHECK(keys.lowest(guard, more).page == 5);
  guard[5] = 1;
  keys.rewind();
  CHECK(keys.lowest(guard, more).page == kNoPage);
}

TEST_CASE("A scan finds what a plain loop finds, and sums the odds outside") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 30));
  CAPTURE(seed);
  Rng rng(seed);
  std::vector<float> odds(kScanPages);
  std::vector<std::uint8_t> inside(kScanPages);
  std::vector<Step> last_read(kScanPages);
  ScanRule rule{1000, 0.5F + static_cast<float>(rng.uniform()), 0.12F, 0.1F, 0.05F, 0.02F};
  for (std::uint32_t i = 0; i < kScanPages; ++i) {
    odds[i] = static_cast<float>(rng.uniform() * rng.uniform());
    inside[i] = static_cast<std::uint8_t>(rng.below(2));
    last_read[i] = rng.below(2) == 0 ? 1000 - rng.below(50) : Step{0} - (Step{1} << 30);
  }
  odds[3] = std::numeric_limits<float>::quiet_NaN();
  odds[4] = -1;
  odds[5] = 7;
  std::uint64_t expected = 0;
  double sum = 0;
  for (std::uint32_t i = 0; i < kScanPages; ++i) {
    const float p = odds[i] > 0 ? std::min(odds[i], 1.0F) : 0.0F;
    const float u = std::min(p * rule.weight, 1.0F) +
                    rule.recency / (2 + static_cast<float>(rule.now - last_read[i]));
    const bool in = inside[i] != 0;
    const bool found = in ? u <= rule.inside_most : u >= rule.outside_least && p >= rule.least_odds;
    if (found) expected |= std::uint64_t{1} << i;
    sum += in ? 0.0 : static_cast<double>(p);
  }
  const ScanFound found = scan_pages({odds.data(), inside.data(), last_read.data()}, rule);
  CHECK(found.pages == expected);
  CHECK(expected != 0);
  CHECK(static_cast<double>(found.odds_outside) == Approx(sum).epsilon(1e-5));
}

TEST_CASE("Neighbours are told from others") {
  std::vector<PageId> pages(kScanPages);
  for (PageId i = 0; i < kScanPages; ++i) pages[i] = 500 + i;
  CHECK(side_by_side(pages.data(), kScanPages));
  CHECK(side_by_side(pages.data(), 1));
  for (const std::size_t at : {std::size_t{1}, std::size_t{17}, std::size_t{63}}) {
    std::vector<PageId> other = pages;
    ++other[at];
    CHECK_FALSE(side_by_side(other.data(), kScanPages));
  }
}

}  // namespace
}  // namespace lehr::placement
