// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/mass_ledger.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

/// The pages of a group that may be lowered, by what a share of the mass budget buys: crossings
/// expected a step for each unit of mass. Bins of a quarter of an octave.
class LowerHistogram {
 public:
  static constexpr std::uint32_t kBins = 96;

  static std::uint32_t bin(double crossings_per_mass) {
    constexpr int kFirst = 4 * 4;  // 2^4: half a crossing for a thirtieth of all mass
    if (!(crossings_per_mass < 0x1p60)) return kBins - 1;
    int octave = 0;
    const double mantissa = std::frexp(crossings_per_mass, &octave);  // exact, in [0.5, 1)
    const int quarter = 4 * (octave - 1) + static_cast<int>((2 * mantissa - 1) * 4);
    if (!(crossings_per_mass > 0) || quarter <= kFirst) return 0;
    return std::min(static_cast<std::uint32_t>(quarter - kFirst), kBins - 1);
  }

  void clear() {
    saved_.fill(0);
    mass_.fill(0);
  }
  void add(std::uint32_t b, double saved, double mass) {
    saved_[b] += saved;
    mass_[b] += mass;
  }
  double saved(std::uint32_t b) const { return saved_[b]; }  ///< misses of whole pages, a step
  double mass(std::uint32_t b) const { return mass_[b]; }    ///< share of a step's

 private:
  std::array<double, kBins> saved_{};
  std::array<double, kBins> mass_{};
};

/// What lowering pages would save, group by group, and the mass that it may still take.
struct Lowerable {
  std::span<const LowerHistogram> groups;  ///< as those of the odds
  double mass = 0;
};

struct LoweringOptions {
  double steps = 8;  ///< over whose crossings a lowering has to pay
  double price = 1;  ///< what its write-back counts, against link time saved
  double reserve =
      0.75;  ///< share of the mass budget that is used: what comes may be more than expected
};

/// Lowers pages as they are read over the link, group by group above a threshold of crossings saved
/// for each share of mass; whoever owns this finds the thresholds. The write-backs of a layer take
/// no longer than the layer.
class Lowering {
 public:
  /// Nothing is ever lowered unless the context allows it.
  void begin(const PolicyContext& context, const LoweringOptions& options);
  bool allowed() const { return saved_ > 0; }
  /// Link time of a lowered page's crossing, in those of a whole one.
  double crossing() const { return 1 - saved_; }

  void next_step() { ledger_.next_step(); }
  void read(const LayerView& view) { ledger_.read(view); }
  void forget(std::span<const PageId> pages) { ledger_.forget(pages); }

  /// Adds a page of a group, if lowering it could pay.
  void count(PageId page, float odds, const LayerView& view, LowerHistogram& group) const;
  /// Whether it is above a group's threshold.
  bool pays(PageId page, float odds, Step now, std::uint32_t least) const;
  double mass_left() const { return budget_ * ledger_.knowledge() - ledger_.used(); }
  /// Once a layer: how many may be lowered in it.
  std::uint32_t begin_layer(Seconds layer_takes) const;
  /// Lowers the page if the budget has room.
  bool lower(PageId page, float odds, Step now, LayerPlan& plan);

 private:
  MassLedger ledger_;
  double budget_ = 0;
  double saved_ = 0;
  double least_odds_ = 1;
  const Link* down_ = nullptr;
  Bytes lowered_bytes_ = 0;
};

}  // namespace lehr::placement
