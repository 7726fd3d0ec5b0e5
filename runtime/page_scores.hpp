// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/importance.hpp"
#include "runtime/page_table.hpp"
#include "runtime/sequence.hpp"

namespace lehr::runtime {

/// The importance of every full page, as ranks among all of them, anew each step. Where the weights
/// learn, they follow what the step before has read. Not thread-safe.
class PageScores {
 public:
  static Result<PageScores> create(const ImportanceOptions& options);

  /// Scores the full pages of all sequences for the step `now`, which is about to run.
  void refresh(const PageTable& table, std::uint32_t groups, const Heat& heat,
               std::span<const std::optional<Sequence>> sequences, Step now);

  /// By PageId, in [0, 1]; 0.5 of pages that no refresh has met.
  std::span<const float> ranks() const { return ranks_; }
  const ImportanceWeights& weights() const { return scorer_.weights(); }

 private:
  explicit PageScores(Importance scorer, const ImportanceOptions& options)
      : options_(options), scorer_(std::move(scorer)) {}

  void learn(const Heat& heat, Step now);
  void score(const Sequence& s, std::uint32_t groups, const Heat& heat, Step now);
  void score_run(PageId first, std::size_t position, std::size_t count, const Heat& heat, Step now);

  ImportanceOptions options_;
  Importance scorer_;
  std::vector<float> ranks_;  ///< by page
  std::vector<Step> scored_;  ///< by page: for which step last, and one
  // Of the pages of a step, in the order in which they were met.
  std::vector<PageId> pages_;
  std::vector<float> raw_;
  std::vector<float> out_;
  // Of the context in hand, by position.
  std::vector<float> position_;
  std::vector<float> saliency_;
  // A sample of the last step, to learn from.
  std::vector<PageId> sample_;
  std::vector<ImportanceTerms> terms_;
  std::vector<std::uint8_t> read_;
};

}  // namespace lehr::runtime
