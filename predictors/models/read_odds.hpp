// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/exchange.hpp"
#include "predictors/history.hpp"

namespace lehr::predictors {

/// How likely each page is to be read in the next step, learnt while decoding: a page's history
/// falls in one of a few thousand cells, and what became of the pages of each cell before says the
/// odds. The cells are shared by all layers and sequences. History of a page: steps since its last
/// read, decayed frequencies of reading (half-lives 8 and 32 steps), and by how many octaves its
/// mass missed or passed the smallest mass that its group selected.
///
/// Only the odds of pages that observe() saw in some layer are meaningful. Costs about 10 ns a page
/// and step. Not thread-safe; deterministic.
class ReadOdds {
 public:
  struct Options {
    double forget = 0.995;  ///< weight of the past after a step
    double prior = 6;       ///< observations that the coarser estimate counts for
    bool use_company =
        true;  ///< correct the odds by what neighbours, other groups and other layers do
  };

  ReadOdds() : ReadOdds(Options{}) {}
  explicit ReadOdds(const Options& options);

  /// Room for pages up to this one.
  void reach(PageId page);
  /// Pages that exist from now on, with no history.
  void add(std::span<const PageId> pages, Step step);
  /// Pages that cease to exist: nothing is expected of them.
  void remove(std::span<const PageId> pages);

  /// Learns from what this layer read, then estimates the odds that the next step reads each page
  /// of it. `runs`: its pages, as LayerReader cuts them; there is room for them.
  void observe(const LayerView& view, std::span<const Run> runs);

  /// By PageId.
  std::span<const float> odds() const { return odds_; }

 private:
  static constexpr std::uint32_t kGaps = 14;
  static constexpr std::uint32_t kRates = 9;
  static constexpr std::uint32_t kMargins = 20;
  static constexpr std::uint32_t kCells = kGaps * kRates * kMargins;
  static constexpr std::uint16_t kNoCell = kCells;
  static constexpr Step kNeverRead = Step{0} - (Step{1} << 30);

  struct Counts {
    double seen = 0;
    double read = 0;
  };

  static constexpr std::uint32_t kOddsBins = 24;
  static constexpr std::uint32_t kCompany = 6;
  static constexpr std::uint32_t kContexts = kOddsBins * kCompany * kCompany * kCompany;

  /// Of pages in one context: how many were expected to be read, and how many were.
  struct Correction {
    double expected_read = 0;
    double expected_unread = 0;
    double read = 0;
    double unread = 0;
  };
  /// Margins of a sequence's positions in one layer, the largest over its groups.
  struct Warmth {
    std::vector<std::uint8_t> by_position;
  };

  void fold(Step step);
  void count(PageId page, std::uint32_t read);
  void note(const Run& run);
  std::uint16_t cell_of(PageId page, Step step) const;
  void judge_group(const GroupView& group, const LayerView& view);
  Warmth& warmth(std::uint32_t layer, std::uint32_t sequence);

  Options options_;
  Step step_ = 0;

  // By page.
  std::vector<float> odds_;
  std::vector<float> rate8_;
  std::vector<float> rate32_;
  std::vector<float> margin_;       ///< decayed, half-life 2
  std::vector<float> peak_margin_;  ///< largest, falling by a quarter octave a step
  std::vector<Step> last_read_;
  std::vector<Step> born_;
  std::vector<std::uint16_t> cell_;

  // By cell.
  std::array<std::uint64_t, kCells + 1>
      fresh_{};  ///< of this step: pages in the low half, reads in the high
  std::array<Counts, kCells> counts_{};
  std::array<float, kCells + 1> cell_odds_{};
  std::array<std::uint8_t, kCells + 1> cell_bin_{};

  // By context.
  std::array<Correction, kContexts> corrections_{};
  std::array<float, kContexts> factor_{};
  std::vector<std::uint16_t> context_;       ///< by page
  std::vector<float> first_odds_;            ///< by page: before correction
  std::vector<std::vector<Warmth>> warmth_;  ///< by layer and sequence
  std::uint32_t layers_ = 1;

  // From a value to the bin of a cell.
  std::array<std::uint8_t, 202> gap_bin_{};
  std::array<std::uint8_t, 101> rate8_bin_{};
  std::array<std::uint8_t, 1001> rate32_bin_{};
  std::array<std::uint8_t, 361> margin_bin_{};
  std::array<std::uint8_t, 19> company_bin_{};
  std::array<float, 64> exposure8_{};  ///< 1 / (1 - 2^(-age / 8))
  std::array<float, 256> exposure32_{};
};

}  // namespace lehr::predictors
