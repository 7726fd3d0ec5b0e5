// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/coldest.hpp"
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
};

/// Scores pages by frequency and importance. Who leaves next is listed ahead of demand, coldest
/// last, so that an eviction within a step takes the end of a list; the list and the ranks of the
/// thresholds are made anew now and then by one pass over columns.
///
/// A page that was read is kept (one crossing) if there is room, if it is better than a resident
/// that is due for demotion, or if it qualifies for promotion and is better than the coldest
/// resident.
class LfuImportance final : public Policy {
 public:
  explicit LfuImportance(const Parameters& p)
      : half_life_(p.at("half-life")),
        window_(static_cast<Step>(p.at("window"))),
        promote_visits_(static_cast<std::uint32_t>(p.at("promote-visits"))),
        demote_idle_(static_cast<Step>(p.at("demote-idle"))),
        shares_{std::min(p.at("demote-score"), p.at("promote-score")), p.at("promote-score")},
        headroom_(p.at("headroom")) {
    rule_.full = full_rate(half_life_);
    rule_.frequency_256 = static_cast<std::uint32_t>(p.at("frequency-weight") * 256 + 0.5);
    rule_.importance_256 = static_cast<std::uint32_t>(p.at("importance-weight") * 256 + 0.5);
  }

  void begin(const PolicyContext& context) override {
    residents_.clear();
    residents_.reserve(context.capacity);
    for (auto* column : {&visits_, &mass_, &peak_, &born_}) column->clear();
    history_.clear();
    place_.clear();
    leaving_.clear();
    thresholds_ = {0, 0};
    base_ = 0;
    set_time(0);
    ranked_window_ = kNever;
    listed_step_ = kNever;
    dry_ = false;
  }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                 const PageColumns& columns) override {
    for (const PageId p : pages) {
      reach(p);
      clear(p);
      if (columns.in_hbm(p)) keep(p);
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) {
      if (p >= place_.size()) continue;
      if (place_[p] != kNoSlot) leave(p);
      clear(p);
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    set_time(view.step);
    add_pages(view.filled, {}, view.pages);
    if (view.step / window_ != ranked_window_) rank(view.step / window_);
    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      note(view.selected[i], view.mass.empty() ? kNoMass : view.mass[i],
           view.peak.empty() ? kNoMass : view.peak[i]);
    }
    list_coldest();
    std::uint32_t free = view.free_slots;
    for (; free < view.must_free; ++free) {
      PageId v = coldest(view.pages.guard);
      if (v == kNoPage) v = any_free(view.pages.guard);
      if (v == kNoPage) break;
      drop(v, plan);
    }
    free = free > view.must_free ? free - view.must_free : 0;
    for (const PageId page : view.missed) {
      if (free > 0) {
        --free;
      } else {
        const PageId v = coldest(view.pages.guard);
        if (v == kNoPage) break;
        if (!better(page, v)) continue;
        drop(v, plan);
      }
      keep(page);
      plan.install.push_back(page);
    }
  }

 private:
  /// Visits in the window of the last visit and in the one before, and when that was.
  struct History {
    Step last = 0;
    std::uint8_t visits = 0;
    std::uint8_t before = 0;
    std::uint16_t window = 0;  ///< of the last visit, its low bits
  };
  struct Leaving {
    PageId page;
    std::uint16_t score;
    Step listed;  ///< a later visit takes the page off the list
  };

  void reach(PageId id) {
    if (id < place_.size()) return;
    const std::size_t n = std::max<std::size_t>(id + std::size_t{1}, place_.size() * 2);
    for (auto* column : {&visits_, &mass_, &peak_, &born_}) column->resize(n, 0);
    history_.resize(n);
    place_.resize(n, kNoSlot);
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

  void note(PageId id, MassCode mass, MassCode peak) {
    constexpr std::uint32_t kUnitsPerCode = kUnitsPerDoubling / 8;
    const auto now = static_cast<LogUnits>(rule_.now);
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

  /// The end of the list of those that leave next, skipping what changed since it was made. Stays
  /// listed until drop().
  PageId coldest(std::span<const std::uint16_t> guard) {
    while (!leaving_.empty()) {
      const Leaving& l = leaving_.back();
      if (place_[l.page] != kNoSlot && history_[l.page].last <= l.listed && !held(guard, l.page)) {
        return l.page;
      }
      leaving_.pop_back();
    }
    dry_ = true;
    return kNoPage;
  }

  /// Once a step at most: what wants more evictions in a step than are listed is read in place.
  void list_coldest() {
    const std::size_t n = residents_.size();
    if (listed_step_ == step_) return;
    // Where the demand of the step before ran the list dry, what is read has changed: list more.
    const double share = std::min(1.0, (dry_ ? 2 : 1) * headroom_);
    const auto wanted = static_cast<std::size_t>(share * static_cast<double>(n)) + 64;
    if (leaving_.size() > wanted / 2) return;
    listed_step_ = step_;
    dry_ = false;
    for (auto* column : {&gathered_.visits, &gathered_.mass, &gathered_.peak, &gathered_.born}) {
      column->resize(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const PageId p = residents_[i];
      gathered_.visits[i] = visits_[p];
      gathered_.mass[i] = mass_[p];
      gathered_.peak[i] = peak_[p];
      gathered_.born[i] = born_[p];
    }
    scores_.resize(n);
    score_pages({gathered_.visits, gathered_.mass, gathered_.peak, gathered_.born}, rule_, scores_);
    chooser_.choose(scores_, wanted, chosen_);
    leaving_.clear();
    for (const std::uint32_t c : chosen_) leaving_.push_back({residents_[c], scores_[c], step_});
    sort_coldest_last();
  }

  /// By falling score, a byte at a time: the list is long and a comparison sort is felt.
  void sort_coldest_last() {
    sorted_.resize(leaving_.size());
    for (const std::uint32_t shift : {0U, 8U}) {
      std::array<std::uint32_t, 257> at{};
      for (const Leaving& l : leaving_) ++at[256 - (l.score >> shift & 0xFF)];
      for (std::size_t i = 1; i < at.size(); ++i) at[i] += at[i - 1];
      for (const Leaving& l : leaving_) sorted_[at[255 - (l.score >> shift & 0xFF)]++] = l;
      leaving_.swap(sorted_);
    }
  }

  PageId any_free(std::span<const std::uint16_t> guard) const {
    for (const PageId p : residents_) {
      if (!held(guard, p)) return p;
    }
    return kNoPage;
  }

  /// Scores at the wanted ranks among all pages.
  void rank(Step window) {
    ranked_window_ = window;
    scores_.resize(place_.size());
    score_pages({visits_, mass_, peak_, born_}, rule_, scores_);
    chooser_.quantiles(scores_, shares_, thresholds_);
    if (shares_[0] == 0) thresholds_[0] = 0;  // no rank lies below 0
  }

  void keep(PageId id) {
    if (place_[id] != kNoSlot) return;
    place_[id] = static_cast<std::uint32_t>(residents_.size());
    residents_.push_back(id);
  }
  void leave(PageId id) {
    const PageId last = residents_.back();
    residents_[place_[id]] = last;
    place_[last] = place_[id];
    residents_.pop_back();
    place_[id] = kNoSlot;
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
  std::vector<History> history_;
  std::vector<std::uint32_t> place_;  ///< index in residents_, or kNoSlot
  std::vector<PageId> residents_;
  std::vector<Leaving> leaving_;
  std::vector<Leaving> sorted_;
  Step listed_step_ = kNever;
  bool dry_ = false;
  std::array<std::uint16_t, 2> thresholds_{};  ///< scores at the ranks of demotion and promotion
  Step ranked_window_ = kNever;
  Coldest chooser_;
  std::vector<std::uint16_t> scores_;
  struct {
    std::vector<std::uint16_t> visits, mass, peak, born;
  } gathered_;  ///< of the residents
  std::vector<std::uint32_t> chosen_;
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
