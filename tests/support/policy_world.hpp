// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/policy.hpp"
#include "predictors/watch.hpp"

namespace lehr::test {

/// A batch of sequences that decode together, small enough to reason about. All sequences start
/// with `prompt_pages` full pages in each group and an empty tail.
struct WorldShape {
  std::uint32_t sequences = 1;
  std::uint32_t layers = 2;
  std::uint32_t kv_heads = 1;
  std::uint32_t prompt_pages = 8;
  std::uint32_t page_tokens = 4;
  std::uint32_t steps = 32;
  std::uint32_t selected = 3;  ///< full pages a group reads in a step, as far as there are so many
  std::uint32_t capacity = 8;  ///< HBM slots, tails included
  bool cold = false;           ///< HBM starts empty of full pages
  double pinned = 0;           ///< chance that a resident page is pinned for a step
  double lowered_mass = 0;     ///< that may lie on lowered pages; 0: none may be lowered
  std::uint64_t seed = 1;
};

/// What one replay did.
struct WorldRun {
  std::string broken;  ///< the first rule that a plan or the world broke; empty if none
  std::uint64_t visits = 0;
  std::uint64_t misses = 0;
  std::uint64_t drops = 0;
  std::uint64_t installs = 0;
  std::uint64_t promotions = 0;
  std::uint64_t lowered = 0;
  double most_lowered_mass = 0;  ///< largest share of the latest steps' mass on such
  std::uint64_t plan_digest = 0;
  std::uint64_t layers_without_odds = 0;  ///< the predictor was not trusted
  std::uint64_t layers_paused = 0;
  std::vector<std::uint32_t> misses_of_layer;  ///< by tick
};

/// The step loop played naively: plain sets and searches, every plan checked before it is applied.
class PolicyWorld {
 public:
  explicit PolicyWorld(const WorldShape& shape);

  /// Reads of each tick, by group and position; random, with pages that are hotter than others.
  const std::vector<std::vector<PageId>>& reads() const { return reads_; }
  /// Replaces what was drawn at random; pages are named by page(). Must be full when they are read.
  void set_reads(std::vector<std::vector<PageId>> reads) { reads_ = std::move(reads); }
  PageId page(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head,
              std::uint32_t position) const;

  WorldRun play(placement::Policy& policy) const { return play(policy, nullptr); }
  /// `predictor` fills the view's odds; begun here.
  WorldRun play(placement::Policy& policy, predictors::Predictor* predictor) const;
  /// The policy of that name and, where it reads odds, a fresh predictor `table`.
  WorldRun play(const char* policy, const Parameters& parameters = {}) const;

  const placement::Platform& platform() const { return platform_; }
  placement::PolicyContext context() const;

 private:
  friend class WorldPlay;

  std::uint32_t groups() const { return shape_.layers * shape_.sequences * shape_.kv_heads; }
  std::uint32_t pages_a_group() const {
    return shape_.prompt_pages + shape_.steps / shape_.page_tokens + 2;
  }
  /// Full pages of a group when step begins.
  std::uint32_t full_pages(std::uint32_t step) const {
    return shape_.prompt_pages + step / shape_.page_tokens;
  }
  void draw();

  WorldShape shape_;
  placement::Platform platform_;
  std::vector<std::vector<PageId>> reads_;
  std::vector<std::vector<MassCode>>
      mass_;  ///< by tick, aligned with all pages of the layer's groups
};

/// A machine of two tiers with round figures.
placement::Platform small_platform();

}  // namespace lehr::test
