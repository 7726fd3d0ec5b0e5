// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "placement/instance.hpp"
#include "placement/window_scheme.hpp"

namespace lehr::placement {

/// Pages in HBM, and who would leave first: the lowest in rank, of equals the one whose last read
/// is longest ago.
class Residents {
 public:
  explicit Residents(std::uint32_t pages) : place_(pages, 0), rank(pages, 0), last(pages, 0) {}

  bool contains(PageId p) const { return place_[p] != 0; }
  std::size_t size() const { return held_.size(); }

  void enter(PageId p) {
    if (contains(p)) return;
    held_.push_back(p);
    place_[p] = static_cast<std::uint32_t>(held_.size());
  }
  void leave(PageId p) {
    if (!contains(p)) return;
    const std::uint32_t at = place_[p] - 1;
    held_[at] = held_.back();
    place_[held_[at]] = at + 1;
    held_.pop_back();
    place_[p] = 0;
  }

  /// Of those that `now` did not read; kNoPage if there is none. The scan's cost is shared: a batch
  /// of victims is kept.
  PageId coldest(Tick now) {
    for (;;) {
      while (!victims_.empty()) {
        const auto [key, p] = victims_.back();
        victims_.pop_back();
        if (contains(p) && key == worth(p)) return p;
      }
      for (const PageId p : held_) {
        if (last[p] != now + 1) victims_.emplace_back(worth(p), p);
      }
      if (victims_.empty()) return kNoPage;
      const std::size_t keep = std::max<std::size_t>(1, victims_.size() / 16);
      std::nth_element(victims_.begin(), victims_.begin() + static_cast<std::ptrdiff_t>(keep - 1),
                       victims_.end());
      victims_.resize(keep);
      std::sort(victims_.begin(), victims_.end(), std::greater<>());
    }
  }
  void forget_victims() { victims_.clear(); }
  std::uint64_t worth(PageId p) const {
    return static_cast<std::uint64_t>(std::max(rank[p], 0)) << 32 | last[p];
  }

 private:
  std::vector<PageId> held_;
  std::vector<std::uint32_t> place_;  ///< by page: its place in held_, plus one
  std::vector<std::pair<std::uint64_t, PageId>> victims_;

 public:
  std::vector<std::int32_t> rank;  ///< by page
  std::vector<Tick> last;          ///< tick of the last read, plus one
};

/// The published scheme: ranks are visits in the steps of the window, and in each step a share of
/// the moves that the ranking wants is done, over its layers.
class WindowRanking {
 public:
  WindowRanking(const Instance& instance, const WindowChoice& choice, Residents& residents)
      : in_(instance),
        window_(choice.window),
        share_(choice.share),
        steps_(instance.ticks() / instance.layers),
        residents_(residents),
        layer_(instance.pages(), 0) {
    for (std::uint32_t s = 0; s < std::min(window_, steps_); ++s) count(s, 1);
  }

  /// Ranks the pages `born` and alive, and makes the step's list of moves: the best that are
  /// outside, for the worst inside.
  void begin_step(Tick t, std::uint32_t room, std::span<const PageId> born) {
    moves_.clear();
    done_ = 0;
    std::vector<std::uint32_t> pages_of(static_cast<std::size_t>(window_) + 2, 0);
    alive_.clear();
    for (const PageId p : born) {
      if (in_.death[p] <= t) {
        residents_.leave(p);
        continue;
      }
      alive_.push_back(p);
      ++pages_of[static_cast<std::size_t>(std::max(residents_.rank[p], 0))];
    }
    std::uint32_t least = window_ + 1;
    std::uint64_t above = 0;
    while (least > 0 && above + pages_of[least] <= room) above += pages_of[least--];
    for (const PageId p : alive_) {
      const bool wanted = residents_.rank[p] > static_cast<std::int32_t>(least);
      if (wanted && !residents_.contains(p)) moves_.push_back(p);
    }
    std::stable_sort(moves_.begin(), moves_.end(),
                     [&](PageId a, PageId b) { return residents_.rank[a] > residents_.rank[b]; });
    moves_.resize(static_cast<std::size_t>(std::ceil(share_ * static_cast<double>(moves_.size()))));
    // The step's order: what an earlier layer reads comes first.
    std::stable_sort(moves_.begin(), moves_.end(),
                     [&](PageId a, PageId b) { return layer_[a] < layer_[b]; });
    residents_.forget_victims();
  }

  /// The moves of tick t, each given once.
  std::span<const PageId> moves_at(Tick t) {
    const std::size_t until = moves_.size() * (t % in_.layers + 1) / in_.layers;
    const std::size_t from = std::min(done_, until);
    done_ = until;
    return std::span<const PageId>(moves_).subspan(from, until - from);
  }

  void end_step(std::uint32_t step) {
    count(step, -1);
    if (step + window_ < steps_) count(step + window_, 1);
  }

 private:
  void count(std::uint32_t step, int by) {
    for (Tick t = step * in_.layers; t < (step + 1) * in_.layers && t < in_.ticks(); ++t) {
      for (const PageId p : in_.visits_at(t)) {
        residents_.rank[p] += by;
        layer_[p] = t % in_.layers;
      }
    }
  }

  const Instance& in_;
  std::uint32_t window_;
  double share_;
  std::uint32_t steps_;
  Residents& residents_;
  std::vector<std::uint32_t> layer_;
  std::vector<PageId> alive_;
  std::vector<PageId> moves_;
  std::size_t done_ = 0;
};

/// Pages in the order of their births.
inline std::vector<PageId> by_birth(const Instance& instance) {
  std::vector<PageId> out(instance.pages());
  std::iota(out.begin(), out.end(), PageId{0});
  std::stable_sort(out.begin(), out.end(),
                   [&](PageId a, PageId b) { return instance.birth[a] < instance.birth[b]; });
  return out;
}

}  // namespace lehr::placement
