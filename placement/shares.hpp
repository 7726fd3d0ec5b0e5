// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/rng.hpp"
#include "kernels/base/units.hpp"
#include "placement/anneal.hpp"
#include "placement/lowering.hpp"

namespace lehr::placement {

/// How many pages of a group (one layer of one sequence) have which odds of being read: bins of an
/// eighth of an octave.
class OddsHistogram {
 public:
  static constexpr std::uint32_t kBins = 14 * 8 + 1;  ///< from 2^-14 on; less counts as nothing

  static std::uint32_t bin(float odds) {
    if (!(odds > 0)) return odds <= 0 ? 0 : kBins - 1;  // no number: as if it were certain
    // Exponent and three bits of the mantissa, as they lie in memory.
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(odds < 1 ? odds : 1.0F) >> 20;
    constexpr std::uint32_t kFirst = (127 - 14) << 3;
    return bits < kFirst ? 0 : bits - kFirst;
  }

  void clear() {
    pages_.fill(0);
    odds_.fill(0);
  }
  void add(float odds) {
    const std::uint32_t b = bin(odds);
    ++pages_[b];
    odds_[b] += odds;
  }
  std::uint32_t pages(std::uint32_t b) const { return pages_[b]; }
  double odds(std::uint32_t b) const { return static_cast<double>(odds_[b]); }

 private:
  std::array<std::uint32_t, kBins> pages_{};
  std::array<float, kBins> odds_{};
};

/// A group's share of HBM: its pages with odds in bin `least` and above.
struct Share {
  std::uint32_t group = 0;
  std::uint32_t layer = 0;
  std::uint32_t least = 0;  ///< up to kBins: none
  /// Its pages in this bin of a LowerHistogram and above are lowered when they are read next; up to
  /// LowerHistogram::kBins: none.
  std::uint32_t lowers = LowerHistogram::kBins;
};

/// Groups and layers exist, thresholds are in range.
Status check_shares(std::span<const OddsHistogram> groups, std::uint32_t layers,
                    const std::vector<Share>& shares);

/// The lowest threshold that fits for all groups alike.
std::uint32_t common_threshold(std::span<const OddsHistogram> groups,
                               const std::vector<Share>& shares, std::uint64_t capacity);

struct SharesResult {
  Seconds common = 0;  ///< expected time of the layers if one threshold held for all groups
  Seconds before = 0;  ///< of the shares given, or of the common threshold if that is less
  Seconds after = 0;   ///< of the shares found; never above `before`
  std::uint64_t proposals = 0;
  std::uint64_t accepted = 0;
};

/// Simulated annealing of the shares of HBM that the groups get: their thresholds move by one bin,
/// one up against one down, under the capacity. What a layer takes is expected from the odds of
/// what it does not hold, so that a layer that would be bare of misses is worth more than one that
/// takes a burst in any case. About 30 ns a proposal; the same input and seed give the same shares.
///
/// Where pages may be lowered, one proposal of four is about that: a group lowers a bin more,
/// others as much less as the mass budget asks for. The layers' times are those of both decisions.
class ShareAnnealer {
 public:
  /// `shares` are the warm start, from which and from the common threshold the better is taken;
  /// they come back as the best seen. `cost` is that of a layer by its expected misses. Refuses
  /// groups and layers that do not exist, and thresholds out of range.
  Status run(std::span<const OddsHistogram> groups, const MissCost& cost, std::uint32_t layers,
             std::uint64_t capacity, std::uint64_t proposals, std::uint64_t seed,
             std::vector<Share>& shares, SharesResult& result,
             const Lowerable* lowerable = nullptr);

 private:
  struct Move {
    std::uint32_t bins = 0;  ///< that the one gives up
    std::uint32_t more = 1;  ///< and that the other gets
    double won = 0;          ///< odds of what the other gets
    double lost = 0;         ///< and of what is given up for it
    std::uint64_t held = 0;  ///< pages held after it
    double mass = 0;         ///< lowered after it
    Seconds change = 0;
  };

  void load(std::span<const OddsHistogram> groups, const MissCost& cost,
            const std::vector<Share>& shares);
  void start(std::span<const OddsHistogram> groups, const MissCost& cost, std::uint64_t capacity,
             std::vector<Share>& shares, SharesResult& result);
  bool weigh(std::span<const OddsHistogram> groups, const MissCost& cost, std::uint64_t capacity,
             const Share& grows, const Share& gives, Move& move) const;
  void weigh_misses(const MissCost& cost, const Share& grows, const Share& gives, Move& move) const;
  bool weigh_lowering(const MissCost& cost, const Share& grows, const Share& gives,
                      Move& move) const;
  void make(const Move& move, const MissCost& cost, Share& grows, Share& gives);
  void make_lowering(const Move& move, const MissCost& cost, Share& grows, Share& gives);
  void follow(const Move& move, const MissCost& cost, const Share& grows, const Share& gives);
  void fit_lowering(std::vector<Share>& shares) const;
  double lowered_mass(const std::vector<Share>& shares) const;
  Seconds time() const;

  std::vector<double> misses_;  ///< by layer
  std::vector<Seconds> cost_;   ///< by layer
  std::uint64_t held_ = 0;
  const Lowerable* lowerable_ = nullptr;
  double mass_ = 0;  ///< of what is lowered by the shares as they are
  std::vector<Share> common_;
  std::vector<Share> start_;
  std::vector<Share> best_;
};

}  // namespace lehr::placement
