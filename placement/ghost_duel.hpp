// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/rng.hpp"
#include "placement/policies/index_lists.hpp"
#include "placement/score.hpp"

namespace lehr::placement {

/// Which weights of a score miss least, or whether plain recency does: small ghost caches, one for
/// each contestant, see a sample of the pages (chosen by a hash) at a capacity that is smaller by
/// the same share, so that their miss counts stand for those of a whole cache (Waldspurger et al.,
/// "Cache modeling and optimization using miniature simulations", 2017). Deterministic. Not
/// thread-safe.
class GhostDuel {
 public:
  struct Weights {
    std::uint32_t frequency_256 = 0;
    std::uint32_t importance_256 = 0;
  };
  static constexpr std::size_t kRecency = 0;  ///< the contestant that goes by recency alone

  /// Contestants 1, 2, ... score by `weights`; recency holds until one of them is seen to be
  /// better.
  void reset(std::uint32_t capacity, std::span<const Weights> weights);

  /// A page is in the cache from the start; a page ceases to exist.
  void add(PageId page);
  void forget(PageId page);

  /// One layer's reads. `residents` is how many pages the whole cache holds now; `columns` and
  /// `rule` are the scores' (the rule's weights are not used), the reads noted already.
  void observe(std::span<const PageId> selected, std::size_t residents, const ScoreColumns& columns,
               const ScoreRule& rule);
  /// Once a step. Whether another contestant is the best now.
  bool step_ended();

  std::size_t best() const { return best_; }
  double misses(std::size_t contestant) const { return ghosts_[contestant].misses; }

 private:
  struct Ghost {
    std::vector<std::uint32_t> residents;  ///< sample numbers; unused by recency
    std::vector<std::uint32_t> place;      ///< by sample number: index in residents
    ScoreRule rule;
    double misses = 0;  ///< of late
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  bool sampled(PageId page) const { return (Rng::mix(page + 1) & mask_) == 0; }
  std::uint32_t number(PageId page);
  bool holds(const Ghost& g, std::uint32_t s) const { return g.place[s] != kNone; }
  void enter(Ghost& g, std::uint32_t s);
  void exit(Ghost& g, std::uint32_t s);
  void miss(std::size_t contestant, std::uint32_t s, const ScoreColumns& columns);
  std::uint32_t coldest(Ghost& g, const ScoreColumns& columns, std::uint16_t& score);
  std::uint16_t score(const Ghost& g, std::uint32_t s, const ScoreColumns& columns) const;

  std::uint64_t mask_ = 0;
  std::uint32_t shift_ = 0;
  std::size_t room_ = 1;  ///< of each ghost
  std::size_t best_ = kRecency;
  std::uint32_t steps_ = 0;
  std::uint64_t now_ = 0;
  Rng rng_{0};
  std::vector<Ghost> ghosts_;
  IndexLists recency_;
  std::vector<std::uint32_t> number_;   ///< by page: sample number, or kNone
  std::vector<PageId> page_;            ///< by sample number
  std::vector<std::uint64_t> read_at_;  ///< by sample number: now_ of the last read
  std::vector<std::uint32_t> unused_;   ///< sample numbers
  std::vector<std::uint32_t> here_;     ///< sample numbers of the layer's reads
};

}  // namespace lehr::placement
