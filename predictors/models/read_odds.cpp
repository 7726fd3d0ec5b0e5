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
constexpr float kLowest = -12.0F;
constexpr float kHighest = 6.0F;
constexpr int kFaintest = 160;  ///< code that stands for "no mass": 2^-20

template <std::size_t Edges, std::size_t Bins>
void fill_bins(const std::array<double, Edges>& edges, double first, double scale,
               std::array<std::uint8_t, Bins>& bins) {
  for (std::size_t i = 0; i < Bins; ++i) {
    const double value = first + (static_cast<double>(i) + 0.5) / scale;
    bins[i] = static_cast<std::uint8_t>(std::upper_bound(edges.begin(), edges.end(), value) -
                                        edges.begin());
  }
}

int code_of(const GroupView& group, std::size_t i) {
  const int mean = group.mass[i];
  if (group.peak == nullptr) return std::min(mean, kFaintest);
  return std::min((mean + group.peak[i] + 1) / 2, kFaintest);
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
  seen_.resize(n, kNever);
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
    seen_[p] = kNever;
    cell_[p] = kNoCell;
    first_odds_[p] = -1;
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

int ReadOdds::threshold(const GroupView& group) const {
  // Pages that are read whatever their mass (the first and the latest ones) say nothing of it.
  const std::size_t n = group.blocks.size();
  int worst = -1;
  for (std::size_t i = 1; i + 5 < n; ++i) {
    if (read_[i] != 0) worst = std::max(worst, code_of(group, i));
  }
  if (worst >= 0) return worst;
  int best = kFaintest;
  for (std::size_t i = 0; i < n; ++i) {
    if (read_[i] == 0) best = std::min(best, code_of(group, i));
  }
  return best;
}

void ReadOdds::set_margins(const GroupView& group) {
  const std::size_t n = group.blocks.size();
  if (group.mass == nullptr || !options_.use_mass) {
    // Nothing is known of unread pages: a constant margin leaves the coarse cells.
    std::fill(group_margin_.begin(), group_margin_.begin() + static_cast<std::ptrdiff_t>(n), 0.0F);
    return;
  }
  const int limit = threshold(group);
  for (std::size_t i = 0; i < n; ++i) {
    const float m = static_cast<float>(limit - code_of(group, i)) * 0.125F;
    group_margin_[i] = std::clamp(m, kLowest, kHighest);
  }
}

ReadOdds::Warmth& ReadOdds::warmth(std::uint32_t layer, std::uint32_t sequence) {
  if (layer >= warmth_.size()) warmth_.resize(layer + 1);
  if (sequence >= warmth_[layer].size()) warmth_[layer].resize(sequence + 1);
  return warmth_[layer][sequence];
}

void ReadOdds::note_run(PageId first, std::uint32_t position, std::uint32_t length,
                        const LayerView& view) {
  for (std::uint32_t i = 0; i < length; ++i) {
    const PageId p = first + i;
    if (seen_[p] == view.tick) continue;
    const bool known = seen_[p] != kNever;
    seen_[p] = view.tick;
    const std::uint32_t r = read_[position + i];
    fresh_[cell_[p]] += std::uint64_t{1} + (std::uint64_t{r} << 32);
    if (first_odds_[p] >= 0) {
      Correction& k = corrections_[context_[p]];
      const double e = first_odds_[p];
      k.expected_read += e;
      k.expected_unread += 1 - e;
      k.read += r;
      k.unread += 1 - r;
    }

    const float rf = static_cast<float>(r);
    const float now = group_margin_[position + i];
    rate8_[p] = rate8_[p] * kDecay8 + rf * (1 - kDecay8);
    rate32_[p] = rate32_[p] * kDecay32 + rf * (1 - kDecay32);
    margin_[p] = known ? margin_[p] * kDecay2 + now * (1 - kDecay2) : now;
    peak_margin_[p] = std::max(peak_margin_[p] - 0.25F, now);
    if (r != 0) last_read_[p] = view.step;

    const std::uint32_t age = view.step - born_[p];
    const std::uint32_t gap = gap_bin_[std::min<std::uint32_t>(view.step - last_read_[p], 201)];
    std::uint32_t rate = 0;
    float margin = 0;
    if (gap < kRecentGaps) {
      const float e = rate8_[p] * (age < exposure8_.size() ? exposure8_[age] : 1.0F);
      rate = rate8_bin_[static_cast<std::size_t>(std::min(e, 1.0F) * 100)];
      margin = margin_[p];
    } else {
      const float e = rate32_[p] * (age < exposure32_.size() ? exposure32_[age] : 1.0F);
      rate = rate32_bin_[static_cast<std::size_t>(std::min(e, 1.0F) * 1000)];
      margin = std::max(peak_margin_[p], kLowest);
    }
    cell_[p] =
        static_cast<std::uint16_t>((gap * kRates + rate) * kMargins +
                                   margin_bin_[static_cast<std::size_t>((margin - kLowest) * 20)]);
  }
}

void ReadOdds::note_group(const GroupView& group, const LayerView& view) {
  const std::size_t n = group.blocks.size();
  if (n < 2) return;
  if (read_.size() < n) {
    read_.resize(2 * n);
    group_margin_.resize(2 * n);
  }
  std::fill(read_.begin(), read_.begin() + static_cast<std::ptrdiff_t>(n), std::uint8_t{0});
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    const std::uint32_t position = view.pages.position[view.selected[i]];
    if (position < n) read_[position] = 1;
  }
  set_margins(group);
  const std::size_t full = n - 1;  // the tail is no page of ours yet
  reach(*std::max_element(group.blocks.begin(), group.blocks.end()) + group.offset);
  for (std::size_t i = 0; i < full;) {
    std::size_t end = i + 1;
    while (end < full && group.blocks[end] == group.blocks[end - 1] + 1) ++end;
    note_run(group.page(i), static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(end - i),
             view);
    i = end;
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
    odds_[p] = odds / (odds + 1 - first);
  }
}

void ReadOdds::observe(const LayerView& view) {
  if (view.step != step_) fold(view.step);
  for (const GroupView& group : view.groups) {
    auto& w = warmth(view.layer, group.sequence).by_position;
    w.assign(std::max(w.size(), group.blocks.size()), 0);
  }
  for (const GroupView& group : view.groups) {
    note_group(group, view);
    auto& w = warmth(view.layer, group.sequence).by_position;
    for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
      w[i] = std::max(w[i], static_cast<std::uint8_t>(margin_[group.page(i)] + 12.0F));
    }
  }
  for (const GroupView& group : view.groups) judge_group(group, view);
}

}  // namespace lehr::predictors
