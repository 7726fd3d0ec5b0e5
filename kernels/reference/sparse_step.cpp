// SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse_step.hpp"

#include <vector>

namespace lehr::kernels {
namespace {

Status same(bool equal, const char* what) {
  if (equal) return {};
  return invalid(std::string("sparse step: its parts are given different ") + what);
}

}  // namespace

Status check_sparse_step(const StepShape& shape, const SparseStep& step) {
  const SelectParams& s = step.select;
  const AttendParams& a = step.attend;
  LEHR_TRY(check_score_select(shape, step.score, s));
  LEHR_TRY(check_attend(shape, a));
  LEHR_TRY(same(a.selection == s.selection && a.counts == s.counts && a.selection_pitch == s.pitch,
                "lists"));
  LEHR_TRY(same(a.q == step.score.q, "queries"));
  LEHR_TRY(same(a.lengths == step.score.lengths, "lengths"));
  if (const ResolveParams& r = step.resolve; r.table != nullptr) {
    LEHR_TRY(check_resolve(shape, r));
    LEHR_TRY(same(r.table == a.table, "tables"));
    LEHR_TRY(
        same(r.selection == s.selection && r.counts == s.counts && r.selection_pitch == s.pitch,
             "lists"));
    LEHR_TRY(same(a.installs == nullptr || a.installs == r.installs, "install addresses"));
  }
  if (const FeedbackParams& f = step.feedback; f.pairs != nullptr) {
    LEHR_TRY(check_feedback(shape, f));
    LEHR_TRY(same(f.pairs == a.pairs && f.totals == a.totals, "pairs"));
    LEHR_TRY(
        same(f.selection == s.selection && f.counts == s.counts && f.selection_pitch == s.pitch,
             "lists"));
  }
  return {};
}

Status sparse_step_reference(const StepShape& shape, const SparseStep& step) {
  LEHR_TRY(check_sparse_step(shape, step));
  LEHR_TRY(score_select_reference(shape, step.score, step.select));
  if (step.resolve.table != nullptr) LEHR_TRY(resolve_reference(shape, step.resolve));
  LEHR_TRY(attend_reference(shape, step.attend));
  if (step.feedback.pairs != nullptr) LEHR_TRY(feedback_reference(shape, step.feedback));
  return {};
}

}  // namespace lehr::kernels
