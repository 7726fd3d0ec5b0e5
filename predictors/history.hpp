// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/exchange.hpp"

namespace lehr::predictors {

/// Pages of one KV group that follow each other in position and in id: at most kLength. Both rows
/// of what the step did are null where a run only names pages.
struct Run {
  static constexpr std::uint32_t kLength = 64;  ///< as long as runs of the page table get
  PageId first = 0;
  std::uint32_t position = 0;
  std::uint32_t length = 0;
  const std::uint8_t* read = nullptr;  ///< by page of the run: 1 if this step reads it
  const float* margin = nullptr;       ///< by page: octaves above the least mass selected
  const GroupView* group = nullptr;
  const LayerView* view = nullptr;
};

/// Cuts a layer into runs, and says of each page whether it was read and by how much its mass
/// passed or missed the smallest that its group selected. A page that several sequences of the
/// batch share comes once, with the first of them: it was read if any of them read it, and its
/// margin is the largest of theirs.
class LayerReader {
 public:
  explicit LayerReader(bool use_mass = true) : use_mass_(use_mass) {}

  static constexpr float kLowestMargin = -12.0F;
  static constexpr float kHighestMargin = 6.0F;

  /// The runs of all groups but their tails, group by group. Margins are 0 where masses are
  /// unknown. Where mean and peak are known, their geometric mean is the mass. Valid until the next
  /// call, and as long as the view.
  std::span<const Run> read(const LayerView& view);

 private:
  void reach(PageId page);
  void weigh(const GroupView& group, const LayerView& view);
  void cut(const GroupView& group, const LayerView& view);

  bool use_mass_;
  std::vector<Run> runs_;
  std::vector<PageId> selected_;  ///< of the layer in hand
  // By page.
  std::vector<std::uint8_t> read_;
  std::vector<std::uint8_t> seen_;  ///< 1 if it is part of a run
  std::vector<float> margin_;
  // Of the group in hand, by position.
  std::vector<float> group_margin_;
  std::vector<std::uint8_t> group_read_;
  std::vector<std::int16_t> code_;
};

/// What a page's past looks like, in columns by PageId: the last 64 steps as bits, decayed rates
/// of being read, decayed margins. About 2 ns a page and step.
class History {
 public:
  std::vector<std::uint64_t> bits;                   ///< bit k: read k steps ago
  std::vector<float> rate2, rate8, rate32, rate128;  ///< by half-life in steps
  std::vector<float> margin;                         ///< half-life 2
  std::vector<float> now;                            ///< of the last step
  std::vector<float> peak;         ///< largest, falling by a quarter octave a step
  std::vector<std::uint32_t> age;  ///< steps observed

  std::size_t size() const { return bits.size(); }
  void cover(PageId page);  ///< makes room for it
  void reset(PageId page);
  /// The run's step joins the columns.
  void add(const Run& run);
  /// Only their ages: the other columns are not kept.
  void grow_older(const Run& run);

  std::uint32_t gap(PageId page) const {  ///< steps since the last read, 64 if longer or never
    return bits[page] == 0 ? 64U : static_cast<std::uint32_t>(__builtin_ctzll(bits[page]));
  }
};

/// The largest margin of each position of a sequence over the groups of a layer, as it was when the
/// layer ran last: what the neighbouring layers and the other groups of a layer say of a page.
class Warmth {
 public:
  void begin_layer(const LayerView& view);
  void add(const Run& run, const History& history);
  /// By position; empty if never seen.
  std::span<const float> of(std::uint32_t layer, std::uint32_t sequence) const;

 private:
  std::vector<std::vector<std::vector<float>>> by_layer_;
};

/// Features of a run's pages, a row of kLength floats each.
inline constexpr std::uint32_t kOwnFeatures = 14;    ///< of the page's own past
inline constexpr std::uint32_t kFeatures = 19;       ///< and of what stands beside it
inline constexpr std::uint32_t kFeatureVersion = 1;  ///< in weight files
using Features = std::array<std::array<float, Run::kLength>, kFeatures>;

/// The first `count` features of each page, after History::add and Warmth::add of its layer.
void make_features(const Run& run, const History& history, const Warmth& warmth,
                   std::uint32_t count, Features& out);

/// In place of what stands beside a page, the page itself: as if nothing were known but its past.
void stand_alone(const Run& run, const History& history, Features& out);

}  // namespace lehr::predictors
