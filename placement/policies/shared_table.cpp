// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/shared_table.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement {

namespace {

constexpr double kMost = 3;           // octaves of weight, either way
constexpr std::size_t kMany = 16384;  // pages of a layer
constexpr Step kCountEvery = 4;       // steps

}  // namespace

std::vector<ParameterInfo> shared_table_parameters() {
  std::vector<ParameterInfo> v(table_parameters().begin(), table_parameters().end());
  v.push_back(
      {"follow", "share of the way to the shares found that is gone in a step", 0.1, 0.001, 1});
  v.push_back({"firm", "odds at the border from which on shares count in full", 0.02, 1e-6, 1});
  return v;
}

void SharedTable::note_layer(const LayerView& view) {
  if (!wants_shares()) return;
  for (const GroupView& group : view.groups) {
    if (group.sequence >= weight_stride_) widen(group.sequence + 1);
  }
  if (counted_.empty()) return;  // no group at all
  // Of very many pages the odds drift slowly as a whole: they are counted in one step of a few.
  std::size_t pages = 0;
  for (const GroupView& group : view.groups) pages += group.blocks.size();
  const bool due = pages < kMany || (view.step + view.layer) % kCountEvery == 0;
  if (counted_[view.layer] != 0 && !due) return;
  counted_[view.layer] = 1;
  OddsHistogram* const here = groups_.data() + std::size_t{view.layer} * weight_stride_;
  for (std::uint32_t s = 0; s < weight_stride_; ++s) here[s].clear();
  for (const GroupView& group : view.groups) {
    for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
      const PageId page = group.page(i);
      float odds = odds_of(page, view);
      if (view.pages.is_lowered(page)) odds *= static_cast<float>(lowered_price_);
      here[group.sequence].add(odds);
    }
  }
  note_counted(view);
}

void SharedTable::widen(std::uint32_t sequences) {
  std::vector<OddsHistogram> groups(std::size_t{layers_} * sequences);
  std::vector<Share> shares(groups.size());
  std::vector<double> weight(groups.size(), 1.0);
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint32_t s = 0; s < sequences; ++s) {
      const std::uint32_t to = l * sequences + s;
      shares[to].group = to;
      shares[to].layer = l;
      shares[to].least = OddsHistogram::kBins;
      if (s >= weight_stride_) continue;
      const std::uint32_t from = l * weight_stride_ + s;
      groups[to] = groups_[from];
      shares[to].least = shares_[from].least;
      shares[to].lowers = shares_[from].lowers;
      weight[to] = weight_[from];
    }
  }
  groups_.swap(groups);
  shares_.swap(shares);
  weight_.swap(weight);
  weight_stride_ = sequences;
  counted_.assign(layers_, 0);
}

void SharedTable::plan_step(const LayerView& view) {
  if (!wants_shares() || cost_.empty() || view.odds.empty() || !(predicted_ > 0)) return;
  if (!find_shares(view, groups_, shares_)) return;
  // A group whose threshold lies lower than the mean has odds that count for more.
  double mean = 0;
  for (const Share& s : shares_) mean += s.least;
  mean /= static_cast<double>(shares_.size());
  constexpr double kOctave = 8;
  // Where even unlikely pages have a place, recency orders those near the border, and shares that
  // tell them apart by their odds do harm.
  const std::uint32_t border = common_threshold(groups_, shares_, view.capacity);
  const double firm = std::min(1.0, std::exp2(border / kOctave - 14) / firm_);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const double octaves = firm * std::clamp((mean - shares_[i].least) / kOctave, -kMost, kMost);
    weight_[i] += follow_ * (std::exp2(octaves) - weight_[i]);
    weight_[i] =
        std::round(weight_[i] * 1e6) * 1e-6;  // the last bit of exp2() differs between machines
  }
}

}  // namespace lehr::placement
