// SPDX-License-Identifier: Apache-2.0
#include "kernels/score_select.hpp"

#include <vector>

namespace lehr::kernels {
namespace {

/// The two calls that the fused one stands for, over these scores.
struct Parts {
  ScoreParams score;
  SelectParams select;
  Parts(const ScoreParams& a, const SelectParams& b, float* scores) : score(a), select(b) {
    score.scores = scores;
    select.scores = scores;
    select.lengths = a.lengths;
  }
};

}  // namespace

Status check_score_select(const StepShape& shape, const ScoreParams& score,
                          const SelectParams& select) {
  // Scores may be left out: then any aligned address stands for them.
  alignas(16) static float nowhere = 0;
  const Parts parts(score, select, score.scores != nullptr ? score.scores : &nowhere);
  LEHR_TRY(check_score(shape, parts.score));
  return check_select(shape, parts.select);
}

Status score_select_reference(const StepShape& shape, const ScoreParams& score,
                              const SelectParams& select) {
  LEHR_TRY(check_score_select(shape, score, select));
  std::vector<float> own(score.scores == nullptr ? shape.groups() * shape.max_pages : 0);
  const Parts parts(score, select, score.scores != nullptr ? score.scores : own.data());
  LEHR_TRY(score_reference(shape, parts.score));
  return select_reference(shape, parts.select);
}

}  // namespace lehr::kernels
