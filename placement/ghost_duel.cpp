// SPDX-License-Identifier: Apache-2.0
#include "placement/ghost_duel.hpp"

#include <algorithm>

namespace lehr::placement {

namespace {

constexpr std::size_t kLeastRoom = 256;     ///< of a ghost, where the cache is as large
constexpr std::uint32_t kLooks = 8;         ///< residents of which the coldest leaves
constexpr double kLately = 0.97;            ///< of the misses of a step earlier
constexpr double kBetter = 0.99;            ///< what makes another contestant the best
constexpr double kRecencyWinsBy = 0.995;    ///< of equals recency is taken
constexpr std::uint32_t kVerdictEvery = 4;  ///< steps
constexpr double kEnough = 32;              ///< misses that make a verdict

}  // namespace

void GhostDuel::reset(std::uint32_t capacity, std::span<const Weights> weights) {
  shift_ = 0;
  while ((capacity >> (shift_ + 1)) >= kLeastRoom) ++shift_;
  mask_ = (std::uint64_t{1} << shift_) - 1;
  room_ = std::max<std::size_t>(1, capacity >> shift_);
  best_ = kRecency;
  steps_ = 0;
  now_ = 0;
  rng_ = Rng(0x6057);
  ghosts_.assign(weights.size() + 1, {});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ghosts_[i + 1].rule.frequency_256 = weights[i].frequency_256;
    ghosts_[i + 1].rule.importance_256 = weights[i].importance_256;
  }
  recency_.reset(1, 0);
  number_.clear();
  page_.clear();
  read_at_.clear();
  unused_.clear();
}

std::uint32_t GhostDuel::number(PageId page) {
  if (page >= number_.size()) {
    number_.resize(std::max<std::size_t>(page + std::size_t{1}, 2 * number_.size()), kNone);
  }
  if (number_[page] != kNone) return number_[page];
  std::uint32_t s = static_cast<std::uint32_t>(page_.size());
  if (unused_.empty()) {
    page_.push_back(page);
    read_at_.push_back(0);
    for (Ghost& g : ghosts_) g.place.push_back(kNone);
    recency_.reach(s);
  } else {
    s = unused_.back();
    unused_.pop_back();
    page_[s] = page;
    read_at_[s] = 0;
  }
  return number_[page] = s;
}

void GhostDuel::enter(Ghost& g, std::uint32_t s) {
  if (&g == ghosts_.data()) recency_.push_newest(0, s);
  g.place[s] = static_cast<std::uint32_t>(g.residents.size());
  g.residents.push_back(s);
}

void GhostDuel::exit(Ghost& g, std::uint32_t s) {
  if (&g == ghosts_.data()) recency_.remove(0, s);
  const std::uint32_t last = g.residents.back();
  g.residents[g.place[s]] = last;
  g.place[last] = g.place[s];
  g.residents.pop_back();
  g.place[s] = kNone;
}

void GhostDuel::add(PageId page) {
  if (!sampled(page)) return;
  const std::uint32_t s = number(page);
  for (Ghost& g : ghosts_) {
    if (!holds(g, s) && g.residents.size() < room_) enter(g, s);
  }
}

void GhostDuel::forget(PageId page) {
  if (page >= number_.size() || number_[page] == kNone) return;
  const std::uint32_t s = number_[page];
  for (Ghost& g : ghosts_) {
    if (holds(g, s)) exit(g, s);
  }
  number_[page] = kNone;
  unused_.push_back(s);
}

std::uint16_t GhostDuel::score(const Ghost& g, std::uint32_t s, const ScoreColumns& columns) const {
  const PageId p = page_[s];
  return score_one(columns.visits[p], columns.mass[p], columns.peak[p], columns.born[p], g.rule);
}

/// Of a few residents that are not being read, or kNone.
std::uint32_t GhostDuel::coldest(Ghost& g, const ScoreColumns& columns, std::uint16_t& lowest) {
  std::uint32_t found = kNone;
  for (std::uint32_t i = 0; i < kLooks; ++i) {
    const std::uint32_t s = g.residents[rng_.below(static_cast<std::uint32_t>(g.residents.size()))];
    if (read_at_[s] == now_) continue;
    const std::uint16_t here = score(g, s, columns);
    if (found != kNone && here >= lowest) continue;
    found = s;
    lowest = here;
  }
  return found;
}

void GhostDuel::miss(std::size_t contestant, std::uint32_t s, const ScoreColumns& columns) {
  Ghost& g = ghosts_[contestant];
  g.misses += 1;
  while (g.residents.size() >= room_) {
    if (contestant == kRecency) {
      const std::uint32_t oldest = recency_.oldest(0);
      if (read_at_[oldest] == now_) return;
      exit(g, oldest);
      continue;
    }
    std::uint16_t lowest = 0;
    const std::uint32_t victim = coldest(g, columns, lowest);
    if (victim == kNone || (g.residents.size() == room_ && lowest >= score(g, s, columns))) return;
    exit(g, victim);
  }
  enter(g, s);
}

void GhostDuel::observe(std::span<const PageId> selected, std::size_t residents,
                        const ScoreColumns& columns, const ScoreRule& rule) {
  room_ = std::max<std::size_t>(1, residents >> shift_);
  ++now_;
  here_.clear();
  for (const PageId p : selected) {
    if (!sampled(p)) continue;
    here_.push_back(number(p));
    read_at_[here_.back()] = now_;
  }
  for (Ghost& g : ghosts_) {
    g.rule.now = rule.now;
    g.rule.step = rule.step;
    g.rule.full = rule.full;
  }
  for (const std::uint32_t s : here_) {
    if (holds(ghosts_[kRecency], s)) recency_.move_to_newest(0, s);
  }
  for (std::size_t c = 0; c < ghosts_.size(); ++c) {
    for (const std::uint32_t s : here_) {
      if (!holds(ghosts_[c], s)) miss(c, s, columns);
    }
  }
}

bool GhostDuel::step_ended() {
  const std::size_t before = best_;
  if (++steps_ % kVerdictEvery == 0) {
    const auto cost = [this](std::size_t c) {
      return ghosts_[c].misses * (c == kRecency ? kRecencyWinsBy : 1.0);
    };
    std::size_t least = kRecency;
    for (std::size_t c = 1; c < ghosts_.size(); ++c) {
      if (cost(c) < cost(least)) least = c;
    }
    if (cost(best_) > kEnough && cost(least) < kBetter * cost(best_)) best_ = least;
  }
  for (Ghost& g : ghosts_) g.misses *= kLately;
  return best_ != before;
}

}  // namespace lehr::placement
