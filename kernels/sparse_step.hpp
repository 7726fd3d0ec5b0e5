// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attend.hpp"
#include "kernels/feedback.hpp"
#include "kernels/resolve.hpp"
#include "kernels/score_select.hpp"

namespace lehr::kernels {

/// One layer's sparse decode step: score, select, resolve, attend, feed back. All parts read the
/// same lengths, table and lists: those that `select` writes are what the others are given.
struct SparseStep {
  ScoreParams score;  ///< `scores` may be null
  SelectParams select;
  ResolveParams resolve;  ///< table null: left out
  AttendParams attend;
  FeedbackParams feedback;  ///< pairs null: left out
};

/// Refuses what any part refuses, and parts that do not fit each other.
Status check_sparse_step(const StepShape& shape, const SparseStep& step);
Status sparse_step_reference(const StepShape& shape, const SparseStep& step);

/// The step as one cooperative launch: every CTA chooses pages of some groups, all wait for each
/// other, then all attend. Offered for head_dim 64 and 128, up to 8 query rows a group, 16-bit
/// pages and as many pages as fit their keys into shared memory (8192 on an H100); anything else is
/// kUnsupported: launch the parts. The result has the bits that the parts give.
Status sparse_step_cuda(const StepShape& shape, const SparseStep& step, const AttendTuning& tuning,
                        void* workspace, std::size_t workspace_bytes, void* stream);

}  // namespace lehr::kernels
