// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/base/rng.hpp"
#include "placement/anneal.hpp"
#include "placement/guards.hpp"
#include "placement/lowest_keys.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    // A preset stands above the values that it names, of two the later.
    ParameterInfo{"chat", "1: window-least 30 and window-most 50, whatever they are set to", 0, 0,
                  1},
    ParameterInfo{"code", "1: window-least 80 and window-most 120, likewise; also where chat is 1",
                  0, 0, 1},
    ParameterInfo{"high-bandwidth", "1: share 0.8, whatever it is set to", 0, 0, 1},
    ParameterInfo{"low-bandwidth", "1: share 0.5, likewise; also where high-bandwidth is 1", 0, 0,
                  1},
    ParameterInfo{"window", "steps of history that count, at first", 50, 1, 128},
    ParameterInfo{"window-least", "least window", 20, 1, 128},
    ParameterInfo{"window-most", "largest window", 100, 1, 128},
    ParameterInfo{"window-step", "by how much the window moves with the hit rate", 10, 0, 64},
    ParameterInfo{"share", "share of the wanted moves that is done in a step", 0.6, 0, 1},
    ParameterInfo{"temperature", "start temperature against the predicted time of the step", 0.2, 0,
                  10},
    ParameterInfo{"cooling", "of the temperature", 0.85, 0.1, 0.999},
    ParameterInfo{"cooling-every", "proposals between coolings", 100, 1, 1e6},
    ParameterInfo{"patience", "proposals of too small a gain after which annealing stops", 30, 1,
                  1e6},
    ParameterInfo{"least-gain", "what is too small a gain", 0.001, 0, 1},
    ParameterInfo{"proposals", "most proposals a step", 20000, 0, 1e6},
    ParameterInfo{"guards", "1: moves stop while predictions are wrong or HBM thrashes", 1, 0, 1},
};

/// The reads of a page in the last 128 steps, the latest in bit 0.
struct History {
  std::uint64_t recent = 0;
  std::uint64_t older = 0;
  Step last = 0;

  void shift_to(Step now) {
    const Step by = now - last;
    last = now;
    if (by == 0) return;
    if (by >= 128) {
      recent = older = 0;
    } else if (by >= 64) {
      older = recent << (by - 64);
      recent = 0;
    } else {
      older = older << by | recent >> (64 - by);
      recent <<= by;
    }
  }
};

/// A window of past steps without an edge: each step counts less than the one after it, so that the
/// mean age is that of a window of so many steps. Integers, so that every machine gives the same.
class Window {
 public:
  void set(std::uint32_t steps) {
    const double half_life = 0.5 * std::log(2.0) * steps;
    std::array<std::uint64_t, 8> weight{};
    for (std::size_t i = 0; i < 8; ++i) {
      weight[i] = static_cast<std::uint64_t>(
          std::llround(kOne * std::exp2(-static_cast<double>(i) / half_life)));
    }
    for (std::size_t bits = 0; bits < byte_.size(); ++bits) {
      byte_[bits] = 0;
      for (std::size_t i = 0; i < 8; ++i) byte_[bits] += (bits >> i & 1) * weight[i];
    }
    for (std::size_t k = 0; k < older_.size(); ++k) {
      older_[k] = static_cast<std::uint64_t>(
          std::llround(kOne * std::exp2(-8 * static_cast<double>(k) / half_life)));
    }
    const History always{~std::uint64_t{0}, ~std::uint64_t{0}, 0};
    full_ = sum(always);
  }

  /// Share of the window's steps that read the page, in [0, 1], by `now`.
  double share(History h, Step now) const {
    h.shift_to(now);
    return static_cast<double>(sum(h)) / static_cast<double>(full_);
  }

 private:
  static constexpr double kOne = 1 << 16;

  std::uint64_t sum(const History& h) const {
    std::uint64_t total = 0;
    for (std::uint32_t k = 0; k < 8; ++k) {
      total += byte_[h.recent >> (8 * k) & 0xFF] * older_[k];
      total += byte_[h.older >> (8 * k) & 0xFF] * older_[8 + k];
    }
    return total;
  }

  std::array<std::uint64_t, 256> byte_{};  ///< of the reads in eight steps
  std::array<std::uint64_t, 16> older_{};  ///< weight of the k-th latest eight
  std::uint64_t full_ = 1;
};

/// Simulated annealing without knowledge of the future: pages are valued by their reads in a window
/// of past steps that adapts to the hit rate; once a step, what HBM should hold is annealed and a
/// share of the wanted moves done, the most valuable first. Misses are filled on read by the same
/// value.
class Adaptive final : public Policy {
 public:
  explicit Adaptive(const Parameters& p)
      : window_(static_cast<std::uint32_t>(p.at("window"))),
        least_(static_cast<std::uint32_t>(p.at("window-least"))),
        most_(static_cast<std::uint32_t>(p.at("window-most"))),
        by_(static_cast<std::int32_t>(p.at("window-step"))),
        share_(p.at("share")),
        temperature_(p.at("temperature")),
        proposals_(static_cast<std::uint64_t>(p.at("proposals"))),
        guarded_(p.at("guards") != 0) {
    if (p.at("chat") != 0) least_ = 30, most_ = 50;
    if (p.at("code") != 0) least_ = 80, most_ = 120;
    if (p.at("high-bandwidth") != 0) share_ = 0.8;
    if (p.at("low-bandwidth") != 0) share_ = 0.5;
    most_ = std::max(least_, most_);
    set_window(std::clamp(window_, least_, most_));
    schedule_.cooling = p.at("cooling");
    schedule_.per_temperature = static_cast<std::uint64_t>(p.at("cooling-every"));
    schedule_.patience = static_cast<std::uint64_t>(p.at("patience"));
    schedule_.least_gain = p.at("least-gain");
    schedule_.proposals = proposals_;
  }

  void begin(const PolicyContext& context) override {
    context_ = context;
    layers_ = std::max(1U, context.layers);
    misses_.assign(layers_, 0);
    outside_.assign(layers_, {});
    const Platform* platform = context.platform;
    if (platform == nullptr || platform->link(platform->home, kHbm) == kNoLink) return;
    cost_.assign(layers_, MissCost(*platform, context.page_bytes, 0));
  }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                 const PageColumns& columns) override {
    for (const PageId p : pages) {
      reach(p);
      history_[p] = {0, 0, step_};
      if (columns.in_hbm(p)) keys_.set(p, -1.0 + columns.position[p] * 1e-9);
    }
  }
  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) {
      keys_.erase(p);
      guard_.forget(p);
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    const bool new_step = view.step != step_;
    step_ = view.step;
    keys_.rewind();
    add_pages(view.filled, {}, view.pages);
    learn(view);
    if (new_step && !cost_.empty()) {
      check_prediction(view);
      adapt_window(view);
      anneal(view);
    }
    std::uint32_t free = view.free_slots;
    while (free < view.must_free && make_room(1e300, view, plan)) ++free;
    free = free > view.must_free ? free - view.must_free : 0;
    install(view, free, plan);
    move(view, plan);
    for (const auto& [key, page] : installed_) keys_.set(page, key);
    installed_.clear();
  }

  Restraint restraint() const override { return guarded_ ? guard_.restraint() : Restraint::kNone; }

 private:
  using Valued = std::pair<double, PageId>;
  using Ranked = std::pair<double, bool>;  ///< share of the window, and whether it was read then
  static constexpr double kLeavesFirst = -1e12;
  static constexpr double kStepsAhead = 8;  ///< for which a page's odds are taken to hold

  void reach(PageId p) {
    if (p >= history_.size())
      history_.resize(std::max<std::size_t>(p + std::size_t{1}, 2 * history_.size()));
  }
  static constexpr std::uint32_t kSettles = 4;  ///< steps between verdicts on the window
  static constexpr double kBetter = 1.001;      ///< hits that move it
  static constexpr std::size_t kSample = 4096;  ///< pages that the verdict is of
  static constexpr double kMostReads = 50;
  /// By the reads in the window; of equals the one read last.
  double value(PageId p) const {
    const History& h = history_[p];
    const double recent =
        h.recent == 0 ? 0 : 1.0 / (2.0 + std::countr_zero(h.recent) + (step_ - h.last));
    return kMostReads * candidates_[1].share(h, step_) + recent;
  }

  void learn(const LayerView& view) {
    for (const PageId p : view.selected) {
      guard_.used(p);
      reach(p);
      history_[p].shift_to(view.step);
      history_[p].recent |= 1;
    }
    const auto missed = static_cast<double>(view.missed.size());
    misses_[view.layer] += (missed - misses_[view.layer]) / 8;
    if (!cost_.empty()) taken_ += cost_[view.layer].at(missed);
    step_reads_ += view.selected.size();
    std::vector<Valued>& out = outside_[view.layer];
    out.clear();
    for (const GroupView& group : view.groups) {
      for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
        const PageId p = group.page(i);
        reach(p);
        const double v = value(p);
        if (keys_.contains(p) || view.pages.in_hbm(p)) {  // promoted ones come in here
          keys_.set(p, v);
        } else if (v >= 1) {
          out.emplace_back(v, p);
        }
      }
    }
    std::sort(out.begin(), out.end(), [](const Valued& a, const Valued& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
  }

  /// Was the last step's time as foretold by the recent misses? If not, the latest moves that
  /// nobody used leave again, and no others are made until it is.
  void check_prediction(const LayerView& view) {
    if (!guarded_) return;
    const Seconds control = context_.platform->control_per_layer * layers_;
    undo_.clear();
    if (predicted_ > 0) {
      guard_.step_ended(view.step, predicted_, taken_ + control, step_reads_, view.capacity, undo_);
    }
    for (const PageId p : undo_) {
      if (keys_.contains(p) && view.pages.evictable(p)) keys_.set(p, kLeavesFirst);
    }
    predicted_ = control;
    for (std::uint32_t l = 0; l < layers_; ++l) predicted_ += cost_[l].at(misses_[l]);
    taken_ = 0;
    step_reads_ = 0;
  }

  /// Of a sample of the pages, which share of the last step's reads each of three windows would
  /// have had in HBM: the present one, the next shorter and the next longer. Now and then the
  /// window moves to the one of highest hit rate.
  void adapt_window(const LayerView& view) {
    if (history_.empty()) return;  // no page has become full yet
    const std::size_t stride = history_.size() / kSample + 1;
    for (std::size_t w = 0; w < 3; ++w) {
      ranked_.clear();
      std::size_t pages = 0;
      for (std::size_t p = 0; p < history_.size(); ++p) {
        if (Rng::mix(p) % stride != 0) continue;
        ++pages;
        History h = history_[p];
        if ((h.recent | h.older) == 0) continue;
        h.shift_to(view.step - 1);
        const bool read = (h.recent & 1) != 0;
        h.recent &= ~std::uint64_t{1};
        ranked_.emplace_back(candidates_[w].share(h, view.step - 1), read);
      }
      const std::size_t room = std::size_t{view.capacity} * pages / history_.size();
      if (room < ranked_.size()) {
        std::nth_element(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(room),
                         ranked_.end(),
                         [](const Ranked& a, const Ranked& b) { return a.first > b.first; });
        ranked_.resize(room);
      }
      hits_[w] += static_cast<double>(
          std::count_if(ranked_.begin(), ranked_.end(), [](const Ranked& r) { return r.second; }));
    }
    if (++since_ < kSettles) return;
    since_ = 0;
    const std::size_t best = hits_[0] > kBetter * hits_[1] && hits_[0] >= hits_[2] ? 0
                             : hits_[2] > kBetter * hits_[1]                       ? 2
                                                                                   : 1;
    hits_ = {};
    if (best != 1) set_window(window_beside(best == 0 ? -by_ : by_));
  }
  std::uint32_t window_beside(std::int32_t by) const {
    return static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(std::int64_t{window_} + by, least_, most_));
  }
  void set_window(std::uint32_t steps) {
    window_ = steps;
    candidates_[0].set(window_beside(-by_));
    candidates_[1].set(window_);
    candidates_[2].set(window_beside(by_));
  }

  void anneal(const LayerView& view) {
    marginal_.clear();
    std::vector<double> base = misses_;
    lowest_.clear();
    keys_.collect(keys_.size() / 8 + 1, lowest_);
    const auto odds = [&](PageId p) {
      return static_cast<float>(candidates_[1].share(history_[p], step_));
    };
    for (const PageId p : lowest_) {
      if (view.pages.guard[p] == 0) marginal_.push_back({odds(p), view.pages.layer[p], true, p});
    }
    const std::size_t most = marginal_.size() / layers_ + 1;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::size_t i = 0; i < std::min(most, outside_[l].size()); ++i) {
        const PageId p = outside_[l][i].second;
        if (view.pages.residency[p] == 0 || view.pages.in_hbm(p) || view.pages.guard[p] != 0)
          continue;
        marginal_.push_back({odds(p), static_cast<std::uint16_t>(l), false, p});
        base[l] = std::max(0.0, base[l] - static_cast<double>(marginal_.back().odds));
      }
    }
    double predicted = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) predicted += cost_[l].at(misses_[l]);
    schedule_.start_temperature = temperature_ * predicted;
    schedule_.proposals = std::min<std::uint64_t>(proposals_, 64 * marginal_.size());
    schedule_.seed = context_.seed * 0x9E3779B97F4A7C15ULL + view.step;
    wanted_.clear();
    leaving_.clear();
    if (!annealer_.run({marginal_, cost_, base, cost_[0].price(64)}, schedule_, result_)) return;
    for (const std::uint32_t i : result_.in) wanted_.push_back(marginal_[i]);
    for (const std::uint32_t i : result_.out) leaving_.push_back(marginal_[i]);
    std::sort(wanted_.begin(), wanted_.end(), [](const MarginalPage& a, const MarginalPage& b) {
      return a.odds != b.odds ? a.odds > b.odds : a.page < b.page;
    });
    std::sort(leaving_.begin(), leaving_.end(), [](const MarginalPage& a, const MarginalPage& b) {
      return a.odds != b.odds ? a.odds < b.odds : a.page < b.page;
    });
    wanted_.resize(static_cast<std::size_t>(share_ * static_cast<double>(wanted_.size())));
    next_ = 0;
    next_leaving_ = 0;
  }

  /// The step's moves, spread over its layers.
  void move(const LayerView& view, LayerPlan& plan) {
    if (guarded_ && !guard_.open()) return;
    std::size_t budget = wanted_.size() / layers_ + 1;
    for (; next_ < wanted_.size() && budget > 0; ++next_) {
      const PageId p = wanted_[next_].page;
      if (view.pages.in_hbm(p) || view.pages.residency[p] == 0 || view.pages.guard[p] != 0)
        continue;
      const double visits = kStepsAhead * static_cast<double>(wanted_[next_].odds);
      if (guarded_ && !guard_.may_cross(p, view.step, visits)) continue;
      while (next_leaving_ < leaving_.size() && !leavable(leaving_[next_leaving_].page, view))
        ++next_leaving_;
      if (next_leaving_ == leaving_.size()) return;
      const PageId out = leaving_[next_leaving_++].page;
      keys_.erase(out);
      plan.drop.push_back(out);
      plan.promote.push_back({p, false});
      guard_.crossed(p, view.step);
      --budget;
    }
  }
  bool leavable(PageId p, const LayerView& view) const {
    return keys_.contains(p) && view.pages.evictable(p);
  }

  bool make_room(double key, const LayerView& view, LayerPlan& plan) {
    const PageId v = keys_.lowest(view.pages.guard);
    if (v == kNoPage || keys_.key(v) >= key) return false;
    keys_.erase(v);
    plan.drop.push_back(v);
    return true;
  }

  void install(const LayerView& view, std::uint32_t free, LayerPlan& plan) {
    misses_here_.clear();
    for (const PageId p : view.missed) misses_here_.emplace_back(value(p), p);
    std::sort(misses_here_.begin(), misses_here_.end(), [](const Valued& a, const Valued& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    for (const Valued& m : misses_here_) {
      if (free > 0) {
        --free;
      } else if (!make_room(m.first, view, plan)) {
        break;
      }
      plan.install.push_back(m.second);
      installed_.push_back(m);
    }
  }

  PolicyContext context_;
  std::uint32_t window_;
  std::array<Window, 3> candidates_;  ///< the next shorter, the present, the next longer
  std::uint32_t least_;
  std::uint32_t most_;
  std::int32_t by_;
  double share_;
  double temperature_;
  std::uint64_t proposals_;
  AnnealSchedule schedule_;
  std::uint32_t layers_ = 1;
  Step step_ = 0;
  std::uint32_t since_ = 0;
  std::array<double, 3> hits_{};  ///< of each candidate, of late
  std::vector<Ranked> ranked_;
  std::vector<History> history_;  ///< by page
  LowestKeys keys_;
  std::vector<MissCost> cost_;
  std::vector<double> misses_;
  std::vector<std::vector<Valued>> outside_;
  std::vector<MarginalPage> marginal_;
  std::vector<PageId> lowest_;
  Annealer annealer_;
  AnnealResult result_;
  std::vector<MarginalPage> wanted_;
  std::vector<MarginalPage> leaving_;
  std::size_t next_ = 0;
  std::size_t next_leaving_ = 0;
  std::vector<Valued> misses_here_;
  std::vector<Valued> installed_;
  bool guarded_;
  MigrationGuard guard_;
  Seconds predicted_ = 0;         ///< of the step under way
  Seconds taken_ = 0;             ///< by its layers so far
  std::uint64_t step_reads_ = 0;  ///< pages read since it began, but tails
  std::vector<PageId> undo_;
};

}  // namespace

const PolicyDescriptor& sa_adaptive_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa-adaptive",
      "annealing over pages valued by their reads in an adapting window of past steps",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Adaptive>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
