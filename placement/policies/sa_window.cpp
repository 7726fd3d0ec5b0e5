// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/sa_window.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "kernels/base/rng.hpp"

namespace lehr::placement {

namespace {

/// Plays one scheme over the ticks of an instance.
class Play {
 public:
  Play(const Instance& instance, Scheme scheme, const WindowChoice& choice, std::uint32_t warmup)
      : in_(instance), scheme_(scheme), choice_(choice), warmup_(warmup * instance.layers) {
    const std::size_t n = instance.pages();
    in_hbm_.assign(n, 0);
    rank_.assign(n, 0);
    last_.assign(n, 0);
    layer_.assign(n, 0);
    visits_of_step(0, [&](PageId p, Tick t) { layer_[p] = t % instance.layers; });
    for (PageId p = 0; p < n; ++p) births_.push_back(p);
    std::stable_sort(births_.begin(), births_.end(),
                     [&](PageId a, PageId b) { return in_.birth[a] < in_.birth[b]; });
    steps_ = in_.ticks() / in_.layers;
    for (std::uint32_t s = 0; s < std::min(choice_.window, steps_); ++s) add_step(s, 1);
  }

  SchemeTime run() {
    for (Tick t = 0; t < in_.ticks(); ++t) {
      admit(t);
      const std::uint32_t step = t / in_.layers;
      if (t % in_.layers == 0) begin_step(step);
      tick(t);
      if ((t + 1) % in_.layers == 0 && scheme_ == Scheme::kWindow) {
        add_step(step, -1);
        if (step + choice_.window < steps_) add_step(step + choice_.window, 1);
      }
    }
    return out_;
  }

 private:
  template <class F>
  void visits_of_step(std::uint32_t step, F&& f) const {
    for (Tick t = step * in_.layers; t < (step + 1) * in_.layers && t < in_.ticks(); ++t) {
      for (const PageId p : in_.visits_at(t)) f(p, t);
    }
  }
  void add_step(std::uint32_t step, int by) {
    if (scheme_ != Scheme::kWindow) return;
    visits_of_step(step, [&](PageId p, Tick t) {
      rank_[p] += by;
      layer_[p] = t % in_.layers;
    });
  }

  std::uint32_t room(Tick t) const {
    return in_.capacity > in_.pinned[t] ? in_.capacity - in_.pinned[t] : 0;
  }

  /// Pages that are born now, those in HBM as far as there is room for them.
  void admit(Tick t) {
    for (; next_birth_ < births_.size() && in_.birth[births_[next_birth_]] <= t; ++next_birth_) {
      const PageId p = births_[next_birth_];
      if (in_.born_in_hbm[p] == 0) continue;
      if (t > 0 && scheme_ == Scheme::kStatic && held_.size() >= room(t)) continue;
      enter(p);
    }
    while (held_.size() > room(t)) leave(coldest());
  }
  void enter(PageId p) {
    if (in_hbm_[p] != 0) return;
    in_hbm_[p] = static_cast<std::uint32_t>(held_.size()) + 1;
    held_.push_back(p);
  }
  void leave(PageId p) {
    const std::uint32_t at = in_hbm_[p] - 1;
    held_[at] = held_.back();
    in_hbm_[held_[at]] = at + 1;
    held_.pop_back();
    in_hbm_[p] = 0;
  }

  /// By rank, then by last read. The scan's cost is shared: a batch of victims is kept.
  PageId coldest() {
    for (;;) {
      while (!victims_.empty()) {
        const auto [key, p] = victims_.back();
        victims_.pop_back();
        if (in_hbm_[p] != 0 && key == worth(p)) return p;
      }
      for (const PageId p : held_) victims_.emplace_back(worth(p), p);
      const std::size_t keep = std::max<std::size_t>(1, victims_.size() / 16);
      std::nth_element(victims_.begin(), victims_.begin() + static_cast<std::ptrdiff_t>(keep - 1),
                       victims_.end());
      victims_.resize(keep);
      std::sort(victims_.begin(), victims_.end(),
                [](const auto& a, const auto& b) { return b < a; });
    }
  }
  std::uint64_t worth(PageId p) const {
    const std::uint64_t first = scheme_ == Scheme::kReactive || scheme_ == Scheme::kStatic
                                    ? 0
                                    : static_cast<std::uint64_t>(std::max(rank_[p], 0));
    return first << 32 | last_[p];
  }

  /// The moves of a step: the ranking's best that are outside, for its worst inside.
  void begin_step(std::uint32_t step) {
    moves_.clear();
    next_move_ = 0;
    if (scheme_ == Scheme::kPage && step % 16 == 15) {
      for (std::int32_t& r : rank_) r /= 2;
    }
    if (scheme_ != Scheme::kWindow) return;
    const Tick t = step * in_.layers;
    std::vector<std::uint32_t> count(static_cast<std::size_t>(choice_.window) + 2, 0);
    alive_.clear();
    for (std::size_t i = 0; i < next_birth_; ++i) {
      const PageId p = births_[i];
      if (in_.death[p] <= t) {
        if (in_hbm_[p] != 0) leave(p);
        continue;
      }
      alive_.push_back(p);
      ++count[static_cast<std::size_t>(std::max(rank_[p], 0))];
    }
    std::uint32_t least = choice_.window + 1;
    std::uint64_t above = 0;
    while (least > 0 && above + count[least] <= room(t)) above += count[least--];
    for (const PageId p : alive_) {
      if (in_hbm_[p] == 0 && rank_[p] > static_cast<std::int32_t>(least)) moves_.push_back(p);
    }
    std::stable_sort(moves_.begin(), moves_.end(),
                     [&](PageId a, PageId b) { return rank_[a] > rank_[b]; });
    moves_.resize(
        static_cast<std::size_t>(std::ceil(choice_.share * static_cast<double>(moves_.size()))));
    // The step's order: what an earlier layer reads comes first.
    std::stable_sort(moves_.begin(), moves_.end(),
                     [&](PageId a, PageId b) { return layer_[a] < layer_[b]; });
    victims_.clear();
  }

  void tick(Tick t) {
    const auto visits = in_.visits_at(t);
    std::uint32_t hits = 0;
    for (const PageId p : visits) {
      hits += in_hbm_[p] != 0 ? 1 : 0;
      last_[p] = t + 1;
      if (scheme_ == Scheme::kPage) ++rank_[p];
    }
    const auto misses = static_cast<std::uint32_t>(visits.size()) - hits;
    std::uint32_t crossings = misses;
    std::uint32_t written = 0;
    if (scheme_ == Scheme::kWindow) {
      const std::size_t until = moves_.size() * (t % in_.layers + 1) / in_.layers;
      for (; next_move_ < until; ++next_move_) {
        const PageId p = moves_[next_move_];
        if (in_hbm_[p] != 0) continue;
        if (held_.size() >= room(t)) {
          const PageId v = coldest();
          leave(v);
        }
        enter(p);
        ++crossings;
        ++written;
      }
    } else if (scheme_ != Scheme::kStatic) {
      for (const PageId p : visits) {
        if (in_hbm_[p] != 0) continue;
        if (held_.size() >= room(t)) {
          if (held_.empty()) break;
          const PageId v = coldest();
          if (last_[v] == t + 1 || (scheme_ == Scheme::kPage && worth(v) >= worth(p))) {
            victims_.emplace_back(worth(v), v);
            continue;
          }
          leave(v);
        }
        enter(p);
        ++written;
      }
    }
    const Seconds time = layer_time(*in_.platform, in_.load(t, hits + written, crossings)).total();
    out_.total += time;
    if (t < warmup_) return;
    out_.without_warmup += time;
    out_.visits += visits.size();
    out_.misses += misses;
  }

  const Instance& in_;
  Scheme scheme_;
  WindowChoice choice_;
  Tick warmup_;
  std::uint32_t steps_ = 0;
  std::vector<std::uint32_t> in_hbm_;  ///< by page: its place in held_, plus one
  std::vector<PageId> held_;
  std::vector<std::int32_t> rank_;  ///< visits in the window, or so far
  std::vector<Tick> last_;
  std::vector<std::uint32_t> layer_;
  std::vector<PageId> births_;
  std::size_t next_birth_ = 0;
  std::vector<PageId> alive_;
  std::vector<PageId> moves_;
  std::size_t next_move_ = 0;
  std::vector<std::pair<std::uint64_t, PageId>> victims_;
  SchemeTime out_;
};

WindowChoice neighbour(const WindowChoice& from, std::uint32_t longest, Rng& rng) {
  WindowChoice to = from;
  const double kind = rng.uniform();
  if (kind < 0.4 || kind >= 0.8) {
    const auto by = static_cast<std::int64_t>(1 + rng.below(2)) * (rng.below(2) == 0 ? -1 : 1);
    to.window = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(std::int64_t{from.window} + by, 1, longest));
  }
  if (kind >= 0.4) {
    // Tenths, so that a share that went up and down again is the same share.
    const double tenths = std::round(from.share * 10) + (rng.below(2) == 0 ? -1 : 1);
    to.share = std::clamp(tenths, 0.0, 10.0) / 10;
  }
  return to;
}

}  // namespace

Result<SchemeTime> scheme_time(const Instance& instance, Scheme scheme, const WindowChoice& choice,
                               std::uint32_t warmup_steps) {
  LEHR_TRY(instance.validate());
  if (scheme == Scheme::kWindow &&
      (choice.window == 0 || !(choice.share >= 0 && choice.share <= 1))) {
    return invalid("window scheme: a window of " + std::to_string(choice.window) +
                   " steps and a share of " + std::to_string(choice.share) +
                   "; expected at least 1, and 0 to 1");
  }
  WindowChoice bounded = choice;
  bounded.window = std::min(bounded.window, std::max(1U, instance.ticks() / instance.layers));
  return Play(instance, scheme, bounded, warmup_steps).run();
}

Result<WindowPlan> anneal_window(const Instance& instance, const WindowOptions& options) {
  const std::uint32_t longest = std::max(1U, instance.ticks() / std::max(1U, instance.layers));
  WindowPlan plan;
  std::map<std::pair<std::uint32_t, int>, SchemeTime> known;
  Status failed;
  const auto evaluate = [&](const WindowChoice& c) {
    const std::pair key{c.window, static_cast<int>(std::round(c.share * 10))};
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    auto time = scheme_time(instance, Scheme::kWindow, c, options.warmup_steps);
    if (!time) {
      failed = time.error();
      return SchemeTime{};
    }
    ++plan.evaluations;
    return known[key] = *time;
  };
  WindowChoice now{std::clamp(options.start.window, 1U, longest), options.start.share};
  SchemeTime time = evaluate(now);
  if (!failed) return failed.error();
  plan.before = time.total;
  plan.choice = now;
  plan.time = time;
  Rng rng(options.seed);

  double worse = 0;
  int count = 0;
  for (int i = 0; i < 6 && plan.evaluations < options.most; ++i) {
    const double d = evaluate(neighbour(now, longest, rng)).total - time.total;
    if (d > 0) worse += d, ++count;
  }
  double temperature = count == 0 ? 0 : worse / count / 0.2231435513;  // -ln 0.8
  // Every choice that was played once is known: a walk over known ones must end too.
  for (std::uint32_t proposals = 0;
       plan.evaluations < options.most && proposals < 50 * options.most;) {
    const Seconds best_before = plan.time.total;
    for (std::uint32_t i = 0; i < options.per_temperature && plan.evaluations < options.most;
         ++i, ++proposals) {
      const WindowChoice next = neighbour(now, longest, rng);
      const SchemeTime t = evaluate(next);
      const double d = t.total - time.total;
      if (d > 0 && !(temperature > 0 && rng.uniform() < std::exp(-d / temperature))) continue;
      now = next;
      time = t;
      if (t.total < plan.time.total) {
        plan.time = t;
        plan.choice = next;
      }
    }
    temperature *= 0.9;
    if (best_before - plan.time.total < 0.001 * best_before) break;
  }
  return plan;
}

}  // namespace lehr::placement
