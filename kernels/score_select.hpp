// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/score.hpp"
#include "kernels/select.hpp"

namespace lehr::kernels {

/// score, then select over what it gives, in one launch: each group's CTAs keep its scores in
/// shared memory. `score.scores` may be null, and is written otherwise; `select.scores` is not
/// looked at. Both read the same lengths: `score.lengths`.
Status check_score_select(const StepShape& shape, const ScoreParams& score,
                          const SelectParams& select);
Status score_select_reference(const StepShape& shape, const ScoreParams& score,
                              const SelectParams& select);
Status score_select_cuda(const StepShape& shape, const ScoreParams& score,
                         const SelectParams& select, void* stream);

}  // namespace lehr::kernels
