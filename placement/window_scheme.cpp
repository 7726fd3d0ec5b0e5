// SPDX-License-Identifier: Apache-2.0
#include "placement/window_scheme.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/rng.hpp"
#include "placement/window_ranking.hpp"

namespace lehr::placement {

namespace {

/// Plays one scheme over the ticks of an instance.
class Play {
 public:
  Play(const Instance& instance, Scheme scheme, const WindowChoice& choice, std::uint32_t warmup)
      : in_(instance),
        scheme_(scheme),
        warmup_(warmup * instance.layers),
        residents_(instance.pages()),
        births_(by_birth(instance)) {
    if (scheme == Scheme::kWindow) ranking_.emplace(instance, choice, residents_);
  }

  SchemeTime run() {
    for (Tick t = 0; t < in_.ticks(); ++t) {
      admit(t);
      const std::uint32_t step = t / in_.layers;
      if (t % in_.layers == 0) begin_step(t);
      tick(t);
      if ((t + 1) % in_.layers == 0 && ranking_) ranking_->end_step(step);
    }
    return out_;
  }

 private:
  std::uint32_t room(Tick t) const {
    return in_.capacity > in_.pinned[t] ? in_.capacity - in_.pinned[t] : 0;
  }

  /// Pages that are born now, those in HBM as far as there is room for them.
  void admit(Tick t) {
    for (; born_ < births_.size() && in_.birth[births_[born_]] <= t; ++born_) {
      const PageId p = births_[born_];
      if (in_.born_in_hbm[p] == 0) continue;
      if (t > 0 && scheme_ == Scheme::kStatic && residents_.size() >= room(t)) continue;
      residents_.enter(p);
    }
    while (residents_.size() > room(t)) residents_.leave(residents_.coldest(t));
  }

  void begin_step(Tick t) {
    if (scheme_ == Scheme::kPage && t / in_.layers % 16 == 15) {
      for (std::int32_t& r : residents_.rank) r /= 2;
    }
    if (ranking_) ranking_->begin_step(t, room(t), std::span(births_).first(born_));
  }

  /// Makes room for one page if that is possible.
  bool make_room(Tick t) {
    if (residents_.size() < room(t)) return true;
    const PageId v = residents_.coldest(t);
    if (v == kNoPage) return false;
    residents_.leave(v);
    return residents_.size() < room(t);
  }

  /// Misses that are installed, as the rivals do.
  std::uint32_t install(Tick t, std::span<const PageId> visits) {
    std::uint32_t written = 0;
    for (const PageId p : visits) {
      if (residents_.contains(p)) continue;
      if (residents_.size() >= room(t)) {
        const PageId v = residents_.coldest(t);
        if (v == kNoPage) break;
        if (scheme_ == Scheme::kPage && residents_.worth(v) >= residents_.worth(p)) {
          residents_.forget_victims();  // it stays, and is asked again
          continue;
        }
        residents_.leave(v);
      }
      residents_.enter(p);
      ++written;
    }
    return written;
  }

  void tick(Tick t) {
    const auto visits = in_.visits_at(t);
    std::uint32_t hits = 0;
    for (const PageId p : visits) {
      hits += residents_.contains(p) ? 1 : 0;
      residents_.last[p] = t + 1;
      if (scheme_ == Scheme::kPage) ++residents_.rank[p];
    }
    const auto misses = static_cast<std::uint32_t>(visits.size()) - hits;
    std::uint32_t crossings = misses;
    std::uint32_t written = 0;
    if (ranking_) {
      for (const PageId p : ranking_->moves_at(t)) {
        if (residents_.contains(p) || !make_room(t)) continue;
        residents_.enter(p);
        // What is read in this tick crosses anyway.
        crossings += residents_.last[p] == t + 1 ? 0 : 1;
        ++written;
      }
    } else if (scheme_ != Scheme::kStatic) {
      written = install(t, visits);
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
  Tick warmup_;
  Residents residents_;
  std::optional<WindowRanking> ranking_;
  std::vector<PageId> births_;
  std::size_t born_ = 0;
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
