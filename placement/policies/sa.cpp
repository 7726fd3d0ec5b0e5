// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "placement/policies/shared_table.hpp"

namespace lehr::placement {

namespace {

std::span<const ParameterInfo> parameters() {
  static const std::vector<ParameterInfo> all = [] {
    std::vector<ParameterInfo> v = shared_table_parameters();
    v.push_back({"box", "time box, as a share of the predicted step", 0.01, 0, 100});
    v.push_back({"proposal-ns", "what a proposal counts for in it", 30, 1, 10000});
    v.push_back({"proposals", "most proposals a step, whatever the time box", 20000, 0, 1e6});
    v.push_back({"starts",
                 "proposals a step, in tens of those above, about when each layer's promotions "
                 "start; 0: as soon as odds say so",
                 0, 0, 1e5});
    v.push_back({"lower-steps", "where pages may be lowered: steps in which that has to pay", 8,
                 0.01, 1000});
    v.push_back(
        {"lower-price", "what a lowering's write-back counts against crossings saved", 1, 0, 1000});
    v.push_back({"lower-reserve", "share of the mass budget that is used", 0.75, 0, 1});
    return v;
  }();
  return all;
}

/// The shares of HBM are annealed once a step, so that the layers' expected times, taken together,
/// are least; with them, where pages may be lowered, which of them are. Warm start: what was found
/// in the step before, or one threshold for all, as `table` has it. The time box counts proposals,
/// so that no clock is read and the same seed gives the same plan.
class Annealed final : public SharedTable {
 public:
  explicit Annealed(const Parameters& p)
      : SharedTable(p),
        box_(p.at("box")),
        proposal_(p.at("proposal-ns") * 1e-9),
        most_(static_cast<std::uint64_t>(p.at("proposals"))),
        starts_proposals_(static_cast<std::uint64_t>(p.at("starts"))),
        options_{p.at("lower-steps"), p.at("lower-price"), p.at("lower-reserve")} {}

  void begin(const PolicyContext& context) override {
    lowering_.begin(context, options_);
    lowered_price_ = lowering_.crossing();
    SharedTable::begin(context);
  }

  void remove_pages(std::span<const PageId> pages) override {
    SharedTable::remove_pages(pages);
    lowering_.forget(pages);
  }

 private:
  bool wants_shares() const override { return most_ > 0; }

  bool find_shares(const LayerView& view, std::span<const OddsHistogram> groups,
                   std::vector<Share>& shares) override {
    std::uint64_t proposals = most_;
    const double boxed = box_ * predicted_ / proposal_;
    if (boxed < static_cast<double>(most_)) proposals = static_cast<std::uint64_t>(boxed);
    if (proposals == 0) return false;
    const std::uint64_t seed = context_.seed * 0x9E3779B97F4A7C15ULL + view.step;
    if (starts_proposals_ > 0) find_starts(view, std::min(starts_proposals_, proposals / 10), seed);
    const Lowerable lowerable{lower_, lowering_.mass_left()};
    const bool lowers = lower_.size() == groups.size();
    return annealer_
        .run(groups, cost_[0], layers_, view.capacity, proposals, seed, shares, result_,
             lowers ? &lowerable : nullptr)
        .has_value();
  }

  /// When promotions start is found for the step ahead from the starts of the step before. A start
  /// is that of the first layer of which this one is no more than `leads_` ahead.
  void find_starts(const LayerView& view, std::uint64_t proposals, std::uint64_t seed) {
    expect_promotions(view, promotions_);
    if (!times_.run(promotions_, proposals, seed ^ 0x57A27, starts_, times_result_)) return;
    leads_.assign(layers_, layers_);
    for (std::uint32_t i = 0; i < starts_.size(); ++i)
      leads_[(view.layer + 1 + i) % layers_] = starts_[i] == 0 ? layers_ : i - starts_[i];
  }

  void note_counted(const LayerView& view) override {
    if (!lowering_.allowed()) return;
    if (lower_.size() != std::size_t{layers_} * weight_stride_)
      lower_.assign(std::size_t{layers_} * weight_stride_, {});
    LowerHistogram* const here = lower_.data() + std::size_t{view.layer} * weight_stride_;
    for (std::uint32_t s = 0; s < weight_stride_; ++s) here[s].clear();
    for (const GroupView& group : view.groups) {
      const std::uint32_t kept = share_of(view.layer, group.sequence).least;
      for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
        const PageId page = group.page(i);
        const float odds = odds_of(page, view);
        if (OddsHistogram::bin(odds) >= kept || is_sink(page, view.pages)) continue;
        lowering_.count(page, odds, view, here[group.sequence]);
      }
    }
  }

  /// Pages that are read over the link, and not kept: they are at hand, and cross again.
  void plan_rest(const LayerView& view, LayerPlan& plan) override {
    if (!lowering_.allowed()) return;
    if (view.step != step_) lowering_.next_step();
    step_ = view.step;
    lowering_.read(view);
    if (view.odds.empty() || cost_.empty() || lower_.empty()) return;
    std::uint32_t room =
        lowering_.begin_layer(cost_[0].at(static_cast<double>(view.missed.size())));
    for (const PageId page : view.missed) {
      if (room == 0) return;
      if (view.pages.guard[page] != 1 || view.pages.is_lowered(page) || keys_.contains(page) ||
          is_sink(page, view.pages) || !resident(view.pages.residency[page], view.home)) {
        continue;
      }
      const std::uint32_t sequence = view.pages.sequence[page];
      if (sequence >= weight_stride_) continue;  // its first owner is no more
      const float odds = odds_of(page, view);
      const Share& share = share_of(view.layer, sequence);
      if (!lowering_.pays(page, odds, view.step, share.lowers)) continue;
      if (lowering_.lower(page, odds, view.step, plan)) --room;
    }
  }

  double box_;
  Seconds proposal_;
  std::uint64_t most_;
  ShareAnnealer annealer_;
  SharesResult result_;
  std::uint64_t starts_proposals_;
  PromotionProblem promotions_;
  PromotionTimes times_;
  PromotionTimesResult times_result_;
  std::vector<std::uint32_t> starts_;  ///< of the layers of the step ahead
  LoweringOptions options_;
  Lowering lowering_;
  std::vector<LowerHistogram> lower_;  ///< by layer and sequence; empty where none is lowered
  Step step_ = 0;
};

}  // namespace

const PolicyDescriptor& sa_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa",
      "table, with the shares of HBM that layers and sequences get annealed once a step",
      parameters(),
      {.lowers = true, .needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Annealed>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
