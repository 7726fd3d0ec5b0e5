// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "placement/policies/table.hpp"
#include "placement/shares.hpp"

namespace lehr::placement {

namespace {

std::span<const ParameterInfo> parameters() {
  static const std::vector<ParameterInfo> all = [] {
    std::vector<ParameterInfo> v(table_parameters().begin(), table_parameters().end());
    v.push_back({"box", "time box, as a share of the predicted step", 0.01, 0, 100});
    v.push_back({"proposal-ns", "what a proposal counts for in it", 30, 1, 10000});
    v.push_back({"proposals", "most proposals a step, whatever the time box", 20000, 0, 1e6});
    v.push_back(
        {"follow", "share of the way to the shares found that is gone in a step", 0.1, 0.001, 1});
    return v;
  }();
  return all;
}

/// Table, with the shares of HBM that layers and sequences get annealed once a step, so that the
/// layers' expected times, taken together, are least. Warm start: the shares of the step before, or
/// one threshold for all, as `table` has it. The time box counts proposals, so that no clock is
/// read and the same seed gives the same plan.
class Annealed final : public Table {
 public:
  explicit Annealed(const Parameters& p)
      : Table(p),
        box_(p.at("box")),
        proposal_(p.at("proposal-ns") * 1e-9),
        most_(static_cast<std::uint64_t>(p.at("proposals"))),
        follow_(p.at("follow")) {}

 private:
  void note_layer(const LayerView& view) override {
    if (most_ == 0) return;
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
        here[group.sequence].add(odds_of(group.page(i), view));
      }
    }
  }

  void widen(std::uint32_t sequences) {
    std::vector<OddsHistogram> groups(std::size_t{layers_} * sequences);
    std::vector<Share> shares(groups.size());
    std::vector<double> weight(groups.size(), 1.0);
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::uint32_t s = 0; s < sequences; ++s) {
        const std::uint32_t to = l * sequences + s;
        shares[to] = {to, l, OddsHistogram::kBins};
        if (s >= weight_stride_) continue;
        const std::uint32_t from = l * weight_stride_ + s;
        groups[to] = groups_[from];
        shares[to].least = shares_[from].least;
        weight[to] = weight_[from];
      }
    }
    groups_.swap(groups);
    shares_.swap(shares);
    weight_.swap(weight);
    weight_stride_ = sequences;
    counted_.assign(layers_, 0);
  }

  void plan_step(const LayerView& view) override {
    if (cost_.empty() || view.odds.empty() || !(predicted_ > 0)) return;
    std::uint64_t proposals = most_;
    const double boxed = box_ * predicted_ / proposal_;
    if (boxed < static_cast<double>(most_)) proposals = static_cast<std::uint64_t>(boxed);
    if (proposals == 0) return;
    const std::uint64_t seed = context_.seed * 0x9E3779B97F4A7C15ULL + view.step;
    if (!annealer_.run(groups_, cost_[0], layers_, view.capacity, proposals, seed, shares_,
                       result_)) {
      return;
    }
    // A group whose threshold lies lower than the mean has odds that count for more.
    double mean = 0;
    for (const Share& s : shares_) mean += s.least;
    mean /= static_cast<double>(shares_.size());
    constexpr double kOctave = 8;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const double octaves = std::clamp((mean - shares_[i].least) / kOctave, -kMost, kMost);
      weight_[i] += follow_ * (std::exp2(octaves) - weight_[i]);
      weight_[i] =
          std::round(weight_[i] * 1e6) * 1e-6;  // the last bit of exp2() differs between machines
    }
  }

  static constexpr double kMost = 3;           ///< octaves
  static constexpr std::size_t kMany = 16384;  ///< pages of a layer
  static constexpr Step kCountEvery = 4;       ///< steps

  double box_;
  Seconds proposal_;
  std::uint64_t most_;
  double follow_;
  ShareAnnealer annealer_;
  SharesResult result_;
  std::vector<std::uint8_t> counted_;  ///< by layer: its histograms are filled
  std::vector<OddsHistogram> groups_;  ///< by layer and sequence
  std::vector<Share> shares_;          ///< the same
};

}  // namespace

const PolicyDescriptor& sa_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa",
      "table, with the shares of HBM that layers and sequences get annealed once a step",
      parameters(),
      {.needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Annealed>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
