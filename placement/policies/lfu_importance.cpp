// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "placement/cold_list.hpp"
#include "placement/coldest.hpp"
#include "placement/ghost_duel.hpp"
#include "placement/policies/index_lists.hpp"
#include "placement/policy.hpp"
#include "placement/score.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"frequency-weight", "weight of the visit frequency in the score", 0.6, 0, 1},
    ParameterInfo{"importance-weight", "weight of the attention mass in the score", 0.4, 0, 1},
    ParameterInfo{"half-life", "steps after which a visit counts half", 8, 0.25, 4096},
    ParameterInfo{"window", "steps of a window", 8, 1, 4096},
    ParameterInfo{"promote-visits", "a page is promoted above so many visits in a window", 2, 0,
                  255},
    ParameterInfo{"promote-score", "and at this rank of its score among all pages, from 0 to 1",
                  0.7, 0, 1},
    ParameterInfo{"demote-score", "below this rank a resident page gives way to any better one",
                  0.3, 0, 1},
    ParameterInfo{"demote-idle", "so does one that was not read for so many windows", 3, 1, 1e6},
    ParameterInfo{"headroom", "share of the residents listed as next to leave, ahead of demand",
                  0.125, 0.001, 1},
    ParameterInfo{"self-tune",
                  "1: the weights are those whose ghost cache misses least, or plain recency is", 0,
                  0, 1},
};

/// Scores pages by frequency and importance. Who leaves next is listed ahead of demand, so that an
/// eviction within a step takes the end of a list; each layer does its share of the sweep that
/// makes the next list.
///
/// A page that was read is kept (one crossing) if there is room, if it is better than a resident
/// that is due for demotion, or if it qualifies for promotion and is better than the coldest
/// resident.
///
/// Where the view has scores of importance, they stand in the place of the masses.
///
/// Self-tuning starts as lru, and turns to scores once ghost caches miss less with them.
class LfuImportance final : public Policy {
 public:
  explicit LfuImportance(const Parameters& p)
      : half_life_(p.at("half-life")),
        window_(static_cast<Step>(p.at("window"))),
        promote_visits_(static_cast<std::uint32_t>(p.at("promote-visits"))),
        demote_idle_(static_cast<Step>(p.at("demote-idle"))),
        shares_{std::min(p.at("demote-score"), p.at("promote-score")), p.at("promote-score")},
        headroom_(p.at("headroom")),
        tunes_(p.at("self-tune") != 0) {
    rule_.full = full_rate(half_life_);
    const auto weights = [&p](double importance_share) {
      const double sum = p.at("frequency-weight") + p.at("importance-weight");
      const auto in_256 = [sum](double share) {
        return static_cast<std::uint32_t>(std::lround(share * sum * 256));
      };
      return GhostDuel::Weights{in_256(1 - importance_share), in_256(importance_share)};
    };
    const double sum = p.at("frequency-weight") + p.at("importance-weight");
    const double given = sum > 0 ? p.at("importance-weight") / sum : 0;
    contestants_ = {weights(given), weights(0), weights((given + 1) / 2), weights(1)};
    set_weights(contestants_[0]);
  }

  void begin(const PolicyContext& context) override {
    cold_.reset(context.capacity);
    for (auto* column : {&visits_, &mass_, &peak_, &born_}) column->clear();
    history_.clear();
    thresholds_ = {0, 0};
    base_ = 0;
    set_time(0);
    ranked_window_ = kNever;
    if (!tunes_) return;
    recency_.reset(1, 0);
    duel_.reset(context.capacity, contestants_);
  }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                 const PageColumns& columns) override {
    for (const PageId p : pages) {
      reach(p);
      clear(p);
      if (!columns.in_hbm(p)) continue;
      keep(p);
      if (tunes_) duel_.add(p);
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) {
      if (p >= history_.size()) continue;
      if (cold_.contains(p)) leave(p);
      if (tunes_) duel_.forget(p);
      clear(p);
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    if (tunes_ && view.step != step_ && duel_.step_ended()) take_weights();
    set_time(view.step);
    importance_ = view.pages.importance;
    add_pages(view.filled, {}, view.pages);
    if (view.step / window_ != ranked_window_) rank(view.step / window_);
    note_reads(view);
    if (!by_recency()) {
      cold_.sweep(view.layers, headroom_,
                  [this](std::span<const PageId> pages, std::span<std::uint16_t> out) {
                    score(pages, out);
                  });
    }
    std::uint32_t free = view.free_slots;
    for (; free < view.must_free; ++free) {
      PageId v = coldest(view.pages.guard);
      if (v == kNoPage) v = cold_.any(view.pages.guard);
      if (v == kNoPage) break;
      drop(v, plan);
    }
    install(view, free > view.must_free ? free - view.must_free : 0, plan);
  }

 private:
  /// Visits in the window of the last visit and in the one before, and when that was.
  struct History {
    Step last = 0;
    std::uint8_t visits = 0;
    std::uint8_t before = 0;
    std::uint16_t window = 0;  ///< of the last visit, its low bits
  };

  void reach(PageId id) {
    if (tunes_) recency_.reach(id);
    if (id < history_.size()) return;
    const std::size_t n = std::max<std::size_t>(id + std::size_t{1}, history_.size() * 2);
    for (auto* column : {&visits_, &mass_, &peak_, &born_}) column->resize(n, 0);
    history_.resize(n);
  }
  void clear(PageId id) {
    visits_[id] = mass_[id] = peak_[id] = 0;
    born_[id] = rule_.step;
    history_[id] = {step_, 0, 0, window_now_};
  }

  /// The present in logarithmic units: 64 a half-life, from a zero that follows at a distance, so
  /// that 16 bits hold every key.
  void set_time(Step step) {
    constexpr std::uint32_t kFaintest = 32 * kUnitsPerDoubling;  // below every recorded mass
    const auto units =
        static_cast<std::uint64_t>(step * (kUnitsPerDoubling / half_life_)) + kFaintest;
    constexpr std::uint32_t kLimit = 48 * 1024;
    if (units - base_ >= kLimit) {
      const std::uint64_t by = units - base_ - kLimit / 2;
      base_ += by;
      for (auto* column : {&visits_, &mass_, &peak_}) {
        for (LogUnits& key : *column) key = static_cast<LogUnits>(key > by ? key - by : 0);
      }
    }
    step_ = step;
    window_now_ = static_cast<std::uint16_t>(step / window_);
    rule_.step = static_cast<std::uint16_t>(step);
    rule_.now = static_cast<std::uint32_t>(units - base_);
  }

  void note_reads(const LayerView& view) {
    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      note(view.selected[i], view.mass.empty() ? kNoMass : view.mass[i],
           view.peak.empty() ? kNoMass : view.peak[i]);
    }
    if (!tunes_) return;
    duel_.observe(view.selected, cold_.size(), {visits_, mass_, peak_, born_}, rule_);
    recency_.rewind();
    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      if (view.hit[i] != 0) recency_.move_to_newest(0, view.selected[i]);
    }
  }

  void install(const LayerView& view, std::uint32_t free, LayerPlan& plan) {
    for (const PageId page : view.missed) {
      if (free > 0) {
        --free;
      } else {
        const PageId v = coldest(view.pages.guard);
        if (v == kNoPage) break;
        if (!by_recency() && !better(page, v)) continue;
        drop(v, plan);
      }
      keep(page);
      plan.install.push_back(page);
    }
  }

  void note(PageId id, MassCode mass, MassCode peak) {
    constexpr std::uint32_t kUnitsPerCode = kUnitsPerDoubling / 8;
    const auto now = static_cast<LogUnits>(rule_.now);
    cold_.touched(id);
    visits_[id] = add_(visits_[id], now);
    if (mass != kNoMass) {
      mass_[id] = add_(mass_[id], static_cast<LogUnits>(now - kUnitsPerCode * mass));
    }
    if (peak == kNoMass) peak = mass;
    if (peak != kNoMass) {
      peak_[id] = std::max(peak_[id], static_cast<LogUnits>(now - kUnitsPerCode * peak));
    }
    History& h = history_[id];
    if (h.window != window_now_) {
      const auto windows = static_cast<std::uint16_t>(window_now_ - h.window);
      h.before = windows == 1 ? h.visits : std::uint8_t{0};
      h.visits = 0;
      h.window = window_now_;
    }
    h.last = step_;
    if (h.visits < 255) ++h.visits;
  }

  std::uint16_t score(PageId id) const {
    if (id < importance_.size()) return score_given(visits_[id], born_[id], importance_[id], rule_);
    return score_one(visits_[id], mass_[id], peak_[id], born_[id], rule_);
  }

  /// Whether `page`, just read, should have the place of `victim`.
  bool better(PageId page, PageId victim) const {
    const std::uint16_t here = score(page);
    const std::uint16_t there = score(victim);
    if (here <= there) return false;
    if (there < thresholds_[0]) return true;
    if (step_ / window_ - history_[victim].last / window_ >= demote_idle_) return true;
    const History& h = history_[page];
    return std::max(h.visits, h.before) > promote_visits_ && here >= thresholds_[1];
  }

  bool by_recency() const { return tunes_ && duel_.best() == GhostDuel::kRecency; }
  PageId coldest(std::span<const std::uint16_t> guard) {
    return by_recency() ? recency_.oldest_free(0, guard) : cold_.coldest(guard);
  }

  void set_weights(const GhostDuel::Weights& weights) {
    rule_.frequency_256 = weights.frequency_256;
    rule_.importance_256 = weights.importance_256;
  }
  void take_weights() {
    if (by_recency()) return;
    set_weights(contestants_[duel_.best() - 1]);
    ranked_window_ = kNever;  // ranks by other scores
  }

  void score(std::span<const PageId> pages, std::span<std::uint16_t> out) {
    const std::size_t n = pages.size();
    if (!importance_.empty()) {
      for (std::size_t i = 0; i < n; ++i) out[i] = score(pages[i]);
      return;
    }
    for (auto* column : {&gathered_.visits, &gathered_.mass, &gathered_.peak, &gathered_.born}) {
      if (column->size() < n) column->resize(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const PageId p = pages[i];
      gathered_.visits[i] = visits_[p];
      gathered_.mass[i] = mass_[p];
      gathered_.peak[i] = peak_[p];
      gathered_.born[i] = born_[p];
    }
    score_pages({gathered_.visits, gathered_.mass, gathered_.peak, gathered_.born}, rule_, out);
  }

  /// Scores at the wanted ranks among all pages.
  void rank(Step window) {
    ranked_window_ = window;
    scores_.resize(visits_.size());
    if (importance_.empty()) {
      score_pages({visits_, mass_, peak_, born_}, rule_, scores_);
    } else {
      for (std::size_t i = 0; i < scores_.size(); ++i) scores_[i] = score(static_cast<PageId>(i));
    }
    chooser_.quantiles(scores_, shares_, thresholds_);
    if (shares_[0] == 0) thresholds_[0] = 0;  // no rank lies below 0
  }

  void keep(PageId id) {
    if (cold_.contains(id)) return;
    cold_.keep(id);
    if (tunes_) recency_.push_newest(0, id);
  }
  void leave(PageId id) {
    cold_.leave(id);
    if (tunes_) recency_.remove(0, id);
  }
  void drop(PageId id, LayerPlan& plan) {
    leave(id);
    plan.drop.push_back(id);
  }

  double half_life_;
  Step window_;
  std::uint32_t promote_visits_;
  Step demote_idle_;
  std::array<double, 2> shares_;
  double headroom_;

  ScoreRule rule_;
  Step step_ = 0;
  std::uint16_t window_now_ = 0;
  std::uint64_t base_ = 0;
  LogAdder add_;
  std::vector<LogUnits> visits_;
  std::vector<LogUnits> mass_;
  std::vector<LogUnits> peak_;
  std::vector<std::uint16_t> born_;
  std::span<const float> importance_;  ///< by page, of the layer in hand; empty: nobody scores
  std::vector<History> history_;
  ColdList cold_;                              ///< the residents
  std::array<std::uint16_t, 2> thresholds_{};  ///< scores at the ranks of demotion and promotion
  Step ranked_window_ = kNever;
  Coldest chooser_;
  std::vector<std::uint16_t> scores_;
  struct {
    std::vector<std::uint16_t> visits, mass, peak, born;
  } gathered_;  ///< of the pages scored together

  bool tunes_;
  std::array<GhostDuel::Weights, 4> contestants_{};
  GhostDuel duel_;
  IndexLists recency_;  ///< the residents; only where it tunes itself
};

}  // namespace

const PolicyDescriptor& lfu_importance_descriptor() {
  static const PolicyDescriptor descriptor{
      "lfu-importance",
      "score of frequency and attention mass; promotes above and demotes below a rank",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Policy> {
        return std::make_unique<LfuImportance>(p);
      },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
