// SPDX-License-Identifier: Apache-2.0
#include "predictors/models/read_odds.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::predictors {

namespace {

constexpr std::array kGapEdges{0.5,  1.5,  2.5,  3.5,  5.5,   8.5,  12.5,
                               18.5, 26.5, 40.5, 64.5, 100.5, 200.0};
constexpr std::array kRate8Edges{0.01, 0.03, 0.08, 0.16, 0.3, 0.5, 0.75, 0.95};
constexpr std::array kRate32Edges{0.003, 0.01, 0.02, 0.04, 0.08, 0.13, 0.2, 0.35};
constexpr std::array kMarginEdges{-10.0, -9.0, -8.0, -7.0, -6.0, -5.2, -4.5, -3.5, -2.75, -2.0,
                                  -1.5,  -1.0, -0.6, -0.3, 0.0,  0.3,  0.8,  1.6,  2.6};
constexpr std::uint32_t kRecentGaps = 6;  ///< bins of gaps up to 8: there the faster rate says more

constexpr float kDecay8 = 0.917004043F;   // 2^(-1/8)
constexpr float kDecay32 = 0.978572062F;  // 2^(-1/32)
constexpr float kDecay2 = 0.707106781F;   // 2^(-1/2)
constexpr float kLowest = LayerReader::kLowestMargin;

template <std::size_t Edges, std::size_t Bins>
void fill_bins(const std::array<double, Edges>& edges, double first, double scale,
               std::array<std::uint8_t, Bins>& bins) {
  for (std::size_t i = 0; i < Bins; ++i) {
    const double value = first + (static_cast<double>(i) + 0.5) / scale;
    bins[i] = static_cast<std::uint8_t>(std::upper_bound(edges.begin(), edges.end(), value) -
                                        edges.begin());
  }
}

}  // namespace

ReadOdds::ReadOdds(const Options& options) : options_(options) {
  for (std::size_t i = 0; i < gap_bin_.size(); ++i) {
    gap_bin_[i] = static_cast<std::uint8_t>(
        std::upper_bound(kGapEdges.begin(), kGapEdges.end(), static_cast<double>(i)) -
        kGapEdges.begin());
  }
  fill_bins(kRate8Edges, 0, 100, rate8_bin_);
  fill_bins(kRate32Edges, 0, 1000, rate32_bin_);
  fill_bins(kMarginEdges, kLowest, 20, margin_bin_);
  for (std::size_t m = 0; m < company_bin_.size(); ++m) {
    const int octaves = static_cast<int>(m) - 12;
    company_bin_[m] = octaves < -6   ? 0
                      : octaves < -4 ? 1
                      : octaves < -2 ? 2
                      : octaves < 0  ? 3
                      : octaves < 2  ? 4
                                     : 5;
  }
  for (std::size_t age = 0; age < exposure8_.size(); ++age) {
    exposure8_[age] = static_cast<float>(1 / (1 - std::exp2(-(static_cast<double>(age) + 1) / 8)));
  }
  for (std::size_t age = 0; age < exposure32_.size(); ++age) {
    exposure32_[age] =
        static_cast<float>(1 / (1 - std::exp2(-(static_cast<double>(age) + 1) / 32)));
  }
  fold(0);
}

void ReadOdds::reach(PageId page) {
  if (page < odds_.size()) return;
  const std::size_t n = std::max<std::size_t>(page + std::size_t{1}, odds_.size() * 2);
  odds_.resize(n, 0);
  rate8_.resize(n, 0);
  rate32_.resize(n, 0);
  margin_.resize(n, 0);
  peak_margin_.resize(n, kLowest);
  last_read_.resize(n, kNeverRead);
  born_.resize(n, 0);
  cell_.resize(n, kNoCell);
  context_.resize(n, 0);
  first_odds_.resize(n, -1);
}

void ReadOdds::add(std::span<const PageId> pages, Step step) {
  for (const PageId p : pages) {
    reach(p);
    odds_[p] = 0;
    rate8_[p] = 0;
    rate32_[p] = 0;
    margin_[p] = kLowest;
    peak_margin_[p] = kLowest;
    last_read_[p] = kNeverRead;
    born_[p] = step;
    cell_[p] = kNoCell;
    first_odds_[p] = -1;
  }
}

void ReadOdds::remove(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    if (p < odds_.size()) odds_[p] = 0;
  }
}

/// A step's counts join the decayed ones; the odds of every cell follow.
void ReadOdds::fold(Step step) {
  step_ = step;
  for (std::uint32_t c = 0; c < kCells; ++c) {
    const auto seen = static_cast<double>(fresh_[c] & 0xFFFFFFFFU);
    const auto read = static_cast<double>(fresh_[c] >> 32);
    counts_[c].seen = counts_[c].seen * options_.forget + seen;
    counts_[c].read = counts_[c].read * options_.forget + read;
  }
  fresh_.fill(0);
  for (std::uint32_t row = 0; row < kGaps * kRates; ++row) {
    Counts all;
    for (std::uint32_t m = 0; m < kMargins; ++m) {
      all.seen += counts_[row * kMargins + m].seen;
      all.read += counts_[row * kMargins + m].read;
    }
    // Before anything was seen: what was read lately is read again.
    const std::uint32_t gap = row / kRates;
    const double guess = gap == 0 ? 0.75 : 0.3 / (1.0 + gap * gap);
    const double coarse = (all.read + options_.prior * guess) / (all.seen + options_.prior);
    for (std::uint32_t m = 0; m < kMargins; ++m) {
      const Counts& c = counts_[row * kMargins + m];
      cell_odds_[row * kMargins + m] =
          static_cast<float>((c.read + options_.prior * coarse) / (c.seen + options_.prior));
    }
  }
  cell_odds_[kNoCell] = 0;
  for (std::uint32_t c = 0; c < kCells; ++c) {
    // Bins are even in the logarithm of the odds.
    const double odds = std::clamp<double>(cell_odds_[c], 1e-5, 1 - 1e-5);
    const double x = std::log2(odds / (1 - odds));
    cell_bin_[c] = static_cast<std::uint8_t>(std::clamp((x + 12) * 1.2, 0.0, kOddsBins - 1.0));
  }
  for (std::uint32_t c = 0; c < kContexts; ++c) {
    Correction& k = corrections_[c];
    const double read = (k.read + 4) / (k.expected_read + 4);
    const double unread = (k.unread + 4) / (k.expected_unread + 4);
    factor_[c] = static_cast<float>(read / unread);
    k.read *= options_.forget;
    k.unread *= options_.forget;
    k.expected_read *= options_.forget;
    k.expected_unread *= options_.forget;
  }
}

ReadOdds::Warmth& ReadOdds::warmth(std::uint32_t layer, std::uint32_t sequence) {
  if (layer >= warmth_.size()) warmth_.resize(layer + 1);
  if (sequence >= warmth_[layer].size()) warmth_[layer].resize(sequence + 1);
  return warmth_[layer][sequence];
}

/// The outcome of what was said of the page.
inline void ReadOdds::count(PageId page, std::uint32_t read) {
  fresh_[cell_[page]] += std::uint64_t{1} + (std::uint64_t{read} << 32);
  if (first_odds_[page] < 0) return;
  Correction& k = corrections_[context_[page]];
  const double e = static_cast<double>(first_odds_[page]);
  k.expected_read += e;
  k.expected_unread += 1 - e;
  k.read += read;
  k.unread += 1 - read;
}

inline std::uint16_t ReadOdds::cell_of(PageId page, Step step) const {
  const std::uint32_t age = step - born_[page];
  const std::uint32_t gap = gap_bin_[std::min<std::uint32_t>(step - last_read_[page], 201)];
  std::uint32_t rate = 0;
  float margin = 0;
  if (gap < kRecentGaps) {
    const float e = rate8_[page] * (age < exposure8_.size() ? exposure8_[age] : 1.0F);
    rate = rate8_bin_[static_cast<std::size_t>(std::min(e, 1.0F) * 100)];
    margin = margin_[page];
  } else {
    const float e = rate32_[page] * (age < exposure32_.size() ? exposure32_[age] : 1.0F);
    rate = rate32_bin_[static_cast<std::size_t>(std::min(e, 1.0F) * 1000)];
    margin = std::max(peak_margin_[page], kLowest);
  }
  return static_cast<std::uint16_t>((gap * kRates + rate) * kMargins +
                                    margin_bin_[static_cast<std::size_t>((margin - kLowest) * 20)]);
}

void ReadOdds::note(const Run& run) {
  const Step step = run.view->step;
  for (std::uint32_t i = 0; i < run.length; ++i) {
    const PageId p = run.first + i;
    const std::uint32_t r = run.read[i];
    const bool known = cell_[p] != kNoCell;
    count(p, r);
    const auto rf = static_cast<float>(r);
    const float now = run.margin[i];
    rate8_[p] = rate8_[p] * kDecay8 + rf * (1 - kDecay8);
    rate32_[p] = rate32_[p] * kDecay32 + rf * (1 - kDecay32);
    margin_[p] = known ? margin_[p] * kDecay2 + now * (1 - kDecay2) : now;
    peak_margin_[p] = std::max(peak_margin_[p] - 0.25F, now);
    if (r != 0) last_read_[p] = step;
    cell_[p] = cell_of(p, step);
  }
}

void ReadOdds::judge_group(const GroupView& group, const LayerView& view) {
  const std::size_t n = group.blocks.size();
  if (n < 2) return;
  const std::size_t full = n - 1;
  static const std::vector<std::uint8_t> none;
  const auto& below = view.layer > 0 ? warmth(view.layer - 1, group.sequence).by_position : none;
  const auto& above =
      view.layer + 1 < view.layers ? warmth(view.layer + 1, group.sequence).by_position : none;
  const auto& others = warmth(view.layer, group.sequence).by_position;
  for (std::size_t i = 0; i < full; ++i) {
    const PageId p = group.page(i);
    const float first = cell_odds_[cell_[p]];
    if (!options_.use_company) {
      odds_[p] = first;
      continue;
    }
    const auto warm = [](float m) { return static_cast<std::uint32_t>(m + 12.0F); };
    std::uint32_t near = 0;
    if (i > 0) near = warm(margin_[group.page(i - 1)]);
    if (i + 1 < full) near = std::max(near, warm(margin_[group.page(i + 1)]));
    std::uint32_t layers = 0;
    if (i < below.size()) layers = below[i];
    if (i < above.size()) layers = std::max<std::uint32_t>(layers, above[i]);
    const std::uint32_t context =
        ((cell_bin_[cell_[p]] * kCompany + company_bin_[near]) * kCompany +
         company_bin_[others[i]]) *
            kCompany +
        company_bin_[layers];
    context_[p] = static_cast<std::uint16_t>(context);
    first_odds_[p] = first;
    const float odds = first * factor_[context];
    odds_[p] = std::min(odds / (odds + 1 - first), 1.0F);  // the sum is rounded
  }
}

void ReadOdds::observe(const LayerView& view, std::span<const Run> runs) {
  if (view.step != step_) fold(view.step);
  for (const GroupView& group : view.groups) {
    auto& w = warmth(view.layer, group.sequence).by_position;
    w.assign(std::max(w.size(), group.blocks.size()), 0);
  }
  for (const Run& run : runs) note(run);
  for (const GroupView& group : view.groups) {
    auto& w = warmth(view.layer, group.sequence).by_position;
    for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i)
      w[i] = std::max(w[i], static_cast<std::uint8_t>(margin_[group.page(i)] - kLowest));
  }
  for (const GroupView& group : view.groups) judge_group(group, view);
}

}  // namespace lehr::predictors
