// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "placement/anneal.hpp"
#include "placement/cold_keys.hpp"
#include "placement/guards.hpp"
#include "placement/key_scan.hpp"
#include "placement/policies/likeliest.hpp"
#include "placement/policy.hpp"
#include "placement/promotion_times.hpp"

namespace lehr::placement {

/// The parameters of Table, for every policy that builds on it.
std::span<const ParameterInfo> table_parameters();

/// One order over the pages of all layers and sequences: an estimate of the time of next use, from
/// a predictor's odds and from what one more miss costs in the page's layer. What is wanted last
/// leaves, and a page just read that is wanted last is not kept. Pages that are likely to be read
/// are promoted over link time that the layers leave over, and along with bursts of misses where a
/// few more pages cost next to nothing. Without odds it goes by recency and position alone.
///
/// Most pages are far from leaving and from coming: of a layer that runs, a scan finds those that
/// are not, and they alone get keys. About 1 ns a page and step, and some 20 ns for each that is
/// read.
class Table : public Policy {
 public:
  explicit Table(const Parameters& p);

  void begin(const PolicyContext& context) override;
  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override;
  void remove_pages(std::span<const PageId> pages) override;
  void decide(const LayerView& view, LayerPlan& plan) override;
  Restraint restraint() const override { return guarded_ ? guard_.restraint() : Restraint::kNone; }

 protected:
  static constexpr double kStepsAhead = 8;  ///< for which a page's odds are taken to hold
  static constexpr double kFloor = 1e-4;    ///< odds of a page of which nothing speaks
  static constexpr float kRecency = 0.12F;

  struct Wanted {
    double key;
    PageId page;
    float odds;
  };
  struct WantedLater {
    bool operator()(const Wanted& a, const Wanted& b) const {
      return a.key != b.key ? a.key < b.key : a.page > b.page;
    }
  };
  using Candidates = Likeliest<Wanted, WantedLater>;

  /// Once a step, when its first layer's pages have their new keys.
  virtual void plan_step(const LayerView& /*view*/) {}
  /// After a layer's pages have their new keys.
  virtual void note_layer(const LayerView& /*view*/) {}
  /// When all else of a layer is decided.
  virtual void plan_rest(const LayerView& /*view*/, LayerPlan& /*plan*/) {}

  /// What the keys of a layer's pages of one sequence share.
  struct Place {
    double time;            ///< in steps, by the order of ticks
    double weight;          ///< of the odds
    std::uint32_t context;  ///< pages
  };
  Place place_of(std::uint32_t sequence, Step step, std::uint32_t layer) const;
  double key_of(PageId page, Step step, const Place& place, const LayerView& view) const {
    const std::uint32_t position = view.pages.position[page];
    if (position < sinks_) return kSink;
    const std::uint32_t since = gap(page, step);
    const double recent = since < kGaps ? recent_[since] : recent_odds(since);
    const std::uint32_t to_tail = place.context > position ? place.context - position : 0;
    const double odds = static_cast<double>(odds_of(page, view)) * place.weight;
    double price = prices_[view.pages.residency[page] >> 1];
    if (view.pages.is_lowered(page)) price *= lowered_price_;
    const double wanted = std::min(odds, 1.0) + recent + near_tail_[to_tail];
    return -(place.time + 1 / (wanted * price + kFloor));
  }
  double key_of(PageId page, Step step, std::uint32_t layer, const LayerView& view) const {
    return key_of(page, step, place_of(view.pages.sequence[page], step, layer), view);
  }
  /// In [0, 1] whatever the predictor says; what is no number counts as nothing.
  static float odds_of(PageId page, const LayerView& view) {
    const float odds = view.odds.empty() ? 0.0F : view.odds[page];
    return odds > 0 ? std::min(odds, 1.0F) : 0.0F;
  }
  /// Steps since the last read; 0 if read in `now`. Large if never read.
  std::uint32_t gap(PageId page, Step now) const { return now - last_read_[page]; }
  double key_unknown(PageId page, const PageColumns& columns) const;
  bool outside(const Wanted& w, const PageColumns& columns) const;
  bool may_promote(const Wanted& w, Step step) const {
    return !guarded_ || guard_.may_cross(w.page, step, kStepsAhead * static_cast<double>(w.odds));
  }

  PolicyContext context_;
  std::uint32_t layers_ = 1;
  ColdKeys keys_;                       ///< of all pages in HBM
  std::vector<Candidates> candidates_;  ///< by layer: likely pages outside
  std::vector<double> expected_;        ///< by layer: misses of its next run
  std::vector<MissCost> cost_;          ///< one, of any layer
  MigrationGuard guard_;
  Seconds predicted_ = 0;  ///< of the step under way
  /// What odds are worth, by layer and sequence number; empty: all the same.
  std::vector<double> weight_;
  std::uint32_t weight_stride_ = 0;  ///< sequences a layer
  bool link_busy_ = false;           ///< background promotions do not get through
  /// By layer: the most layers ahead of it at which its promotions may start; empty: any.
  std::vector<std::uint32_t> leads_;
  /// What the coming layers want and leave of the link, from the layer after this one on.
  void expect_promotions(const LayerView& view, PromotionProblem& problem);
  double lowered_price_ = 1;  ///< of a miss of a lowered page, in those of a whole one
  bool is_sink(PageId page, const PageColumns& columns) const {
    return columns.position[page] < sinks_;
  }

 private:
  static constexpr std::uint32_t kGaps = 4096;
  static constexpr double kSink = 1e300;  ///< key of a sink, above all others

  /// What a read so many steps ago, and a place so many pages from the tail, add to the odds.
  static double recent_odds(std::uint32_t steps) { return 0.12 / (2 + std::min(steps, 100000U)); }
  static double tail_odds(std::size_t pages) { return 0.01 / (4 + static_cast<double>(pages)); }

  static constexpr Step kNeverRead = Step{0} - (Step{1} << 30);
  static constexpr double kLongest = 1e12;  ///< a wait: nothing has left yet
  static constexpr double kSoonest = 0.3;
  static constexpr double kUnread = 1 / kFloor;  ///< that of a page of which nothing speaks
  static constexpr std::uint32_t kNoSequence = 0xFFFFFFFF;
  static constexpr std::size_t kLeastMore = 64;

  void forget(std::span<const PageId> pages);
  void check_prediction(const LayerView& view);
  void hold_against(const LayerView& view, Seconds control);
  void roll_back(const LayerView& view, std::uint32_t& free, LayerPlan& plan);
  void set_prices();
  void weigh_misses(const LayerView& view);
  void rekey(const LayerView& view);
  struct Border;
  Border border(const LayerView& view, const Place& place) const;
  void list_runs(const GroupView& group, const LayerView& view);
  void rekey_run(PageId first, std::uint32_t count, const LayerView& view, const Place& place,
                 std::uint32_t sequence, Border& border);
  void list_more(std::uint32_t layer, std::uint32_t sequence, const LayerView& view);
  void install_misses(const LayerView& view, std::uint32_t& free, LayerPlan& plan);
  void collect_arrivals(const LayerView& view);
  void promote(const LayerView& view, std::uint32_t free, LayerPlan& plan);
  std::size_t worth_fetching(std::uint32_t layer, std::size_t n, const LayerView& view);
  void fill_burst(const LayerView& view, LayerPlan& plan);
  void expect_less(std::uint32_t layer, float odds) {
    expected_[layer] = std::max(0.0, expected_[layer] - static_cast<double>(odds));
  }
  void give_up(PageId page, const LayerView& view, LayerPlan& plan);
  void follow_border();
  ColdKeys::Lowest lowest(const LayerView& view);
  bool make_room(double key, const LayerView& view, LayerPlan& plan);

  bool guarded_;
  double order_;
  double least_odds_;
  double lead_;
  double gain_;
  std::uint32_t ahead_;
  bool fill_;
  bool budget_;
  bool priced_;
  std::uint32_t sinks_;

  /// Pages side by side in a group.
  struct PageRun {
    PageId first;
    std::uint32_t count;
  };
  /// One layer of one sequence, as it was when it ran last.
  struct Unit {
    Step step = 0;
    Tick tick = kNever;
    Place place{0, 1, 0};
    std::vector<PageRun> runs;
  };
  Unit& unit(std::uint32_t layer, std::uint32_t sequence);
  void set_key(PageId page, double key, const PageColumns& columns) {
    keys_.set(page, columns.layer[page], columns.sequence[page], key);
  }

  std::vector<std::vector<Unit>> units_;  ///< by layer and sequence
  std::vector<PageRun> runs_;             ///< of a group's blocks, from 0
  const PageId* runs_of_ = nullptr;       ///< the blocks that they are of
  // Steps until they are wanted, as their keys have it, of the pages that leave.
  double wait_ = kLongest;       ///< of the soonest wanted, lately
  double wait_now_ = kLongest;   ///< the same with this step
  double mean_wait_ = kLongest;  ///< in the last step that let any leave
  double waits_ = 0;             ///< sum of this step
  double left_ = 0;              ///< pages that left in it
  double listed_ = 0;            ///< pages that were listed as such that may
  double reach_ = 0.8;           ///< share of that wait from which on pages are listed
  std::uint32_t asked_ = 0;      ///< times that more had to be listed in this step
  std::vector<std::pair<double, PageId>> more_;  ///< pages to be listed

  /// By the tiers below HBM that hold a page: what reading it there costs against the home tier.
  std::array<double, std::size_t{1} << (kMaxTiers - 1)> prices_{};
  double cheapest_ = 1;  ///< price of any tier
  double dearest_ = 1;   ///< price of the pages that have left

  std::vector<Step> last_read_;  ///< by page
  Step step_ = 0;
  bool started_ = false;
  Seconds taken_ = 0;                    ///< by the step's layers so far, as far as misses make it
  double misses_step_ = 0;               ///< of the step so far
  double expected_misses_ = 0;           ///< of it when it began
  Seconds expected_time_ = 0;            ///< the same, of its misses
  double bias_ = 1;                      ///< misses that come for each expected one
  double time_bias_ = 1;                 ///< seconds that they take for each expected one
  std::uint64_t step_reads_ = 0;         ///< pages read since it began, but tails
  double promised_ = 0;                  ///< reads of promoted pages, by their odds, lately
  double delivered_ = 0;                 ///< and those that came
  std::uint32_t depth_ = 1;              ///< background promotions that may be on their way
  std::vector<PageId> pending_;          ///< those
  std::vector<double> carried_;          ///< by layer: of them that arrive beside it, lately
  std::vector<Wanted> urgent_pending_;   ///< urgent ones of the layer before
  Seconds beside_ = 0;                   ///< of a layer, in which crossings are hidden
  std::vector<double> burst_;            ///< seconds that a layer takes with n crossings
  std::vector<std::uint32_t> distance_;  ///< by sequence: pages of its context
  std::vector<double> recent_;           ///< by steps since a read: what they add to the odds
  std::vector<double> near_tail_;        ///< the same by pages to the tail
  std::vector<PageId> undo_;             ///< promotions to be given up
  std::vector<Wanted> wanted_;
  std::vector<Wanted> installed_;
};

}  // namespace lehr::placement
