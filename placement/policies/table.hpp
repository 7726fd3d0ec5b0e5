// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "placement/anneal.hpp"
#include "placement/lowest_keys.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

/// The parameters of Table, for every policy that builds on it.
std::span<const ParameterInfo> table_parameters();

/// One order over the pages of all layers and sequences: an estimate of the time of next use, from
/// a predictor's odds and from what one more miss costs in the page's layer. What is wanted last
/// leaves, and a page just read that is wanted last is not kept. Pages that are likely to be read
/// are promoted over link time that the layers leave over, and along with bursts of misses where a
/// few more pages cost next to nothing. Without odds it goes by recency and position alone.
class Table : public Policy {
 public:
  explicit Table(const Parameters& p);

  void begin(const PolicyContext& context) override;
  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override;
  void remove_pages(std::span<const PageId> pages) override;
  void decide(const LayerView& view, LayerPlan& plan) override;

 protected:
  struct Wanted {
    double key;
    PageId page;
    float odds;
  };

  /// Once a step, when the first layer's pages have their new keys: may change keys and candidates.
  virtual void plan_step(const LayerView& /*view*/) {}

  double key_of(PageId page, Step step, std::uint32_t layer, const LayerView& view) const;
  static float odds_of(PageId page, const LayerView& view) {
    return view.odds.empty() ? 0.0F : view.odds[page];
  }
  /// Steps since the last read; 0 if read in `now`. Large if never read.
  std::uint32_t gap(PageId page, Step now) const { return now - last_read_[page]; }

  PolicyContext context_;
  std::uint32_t layers_ = 1;
  LowestKeys keys_;  ///< of all pages in HBM
  std::vector<std::vector<Wanted>>
      candidates_;                          ///< by layer: likely pages outside, the likeliest last
  std::vector<double> misses_;              ///< by layer: recent mean
  std::vector<MissCost> cost_;              ///< one: of any layer, nothing being hidden
  std::vector<std::uint32_t> last_misses_;  ///< by layer: in the step before, or this one
  std::uint64_t step_reads_ = 0;            ///< pages read since the step began, but tails
  bool link_busy_ = false;                  ///< background promotions do not get through

 private:
  static constexpr Step kNeverRead = Step{0} - (Step{1} << 30);

  void forget(std::span<const PageId> pages);
  void weigh_layers();
  void rekey(const LayerView& view);
  void install_misses(const LayerView& view, std::uint32_t& free, LayerPlan& plan);
  void collect_arrivals(const LayerView& view);
  void promote(const LayerView& view, std::uint32_t free, LayerPlan& plan);
  void fill_burst(const LayerView& view, LayerPlan& plan);
  bool outside(const Wanted& w, const PageColumns& columns) const;
  bool make_room(double key, const LayerView& view, LayerPlan& plan);

  double order_;
  double least_odds_;
  double least_star_;
  double lead_;
  int price_;
  bool fill_;
  bool budget_;
  bool urgent_;

  std::vector<Step> last_read_;  ///< by page
  Step step_ = 0;
  bool started_ = false;
  double star_ = 1;                     ///< odds of what the link could not bring in time, smoothed
  std::uint32_t depth_ = 1;             ///< background promotions that may be on their way
  std::vector<PageId> pending_;         ///< those
  std::vector<Wanted> urgent_pending_;  ///< urgent ones of the layer before
  std::vector<double> weight_;          ///< by layer: price of a miss against the mean
  std::vector<double> burst_;           ///< seconds that n pages take together
  std::vector<double> distance_;        ///< by sequence: pages of its context
  std::vector<Wanted> wanted_;
  std::vector<Wanted> installed_;
};

}  // namespace lehr::placement
