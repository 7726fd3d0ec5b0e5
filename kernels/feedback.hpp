// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attend.hpp"

namespace lehr::kernels {

/// What attention has said of a page so far. `mean` and `peak` are of the steps that read the page:
/// a page that was not selected was not asked, so silence is no vote against it (exposure
/// correction).
struct PageHeat {
  float frequency;     ///< reads, decayed by `decay` a step
  float mean;          ///< moving average of the share of softmax mass, mean over query rows
  float peak;          ///< largest share of any query row, decayed
  std::uint32_t step;  ///< of the last read, when the three were brought up to date
};
static_assert(sizeof(PageHeat) == 16);

struct FeedbackParams {
  const SoftmaxPair* pairs = nullptr;   ///< of attend, by list position
  const SoftmaxPair* totals = nullptr;  ///< of attend
  const std::uint32_t* lengths = nullptr;
  const std::uint32_t* selection = nullptr;  ///< as attend's, or null
  const std::uint32_t* counts = nullptr;
  const std::uint32_t* step =
      nullptr;               ///< one word on the device, so that a captured graph may count on
  PageHeat* heat = nullptr;  ///< [sequences][kv_heads][max_pages]
  std::uint32_t selection_pitch = 0;
  float decay = 0.95F;  ///< of frequency and peak, a step; 0 to 1
  float blend = 0.25F;  ///< weight of the newest share in the mean; 0 to 1
  std::uint32_t reserved = 0;
};
static_assert(sizeof(FeedbackParams) == 72 && std::is_standard_layout_v<FeedbackParams>);

Status check_feedback(const StepShape& shape, const FeedbackParams& params);
Status feedback_reference(const StepShape& shape, const FeedbackParams& params);
Status feedback_cuda(const StepShape& shape, const FeedbackParams& params, void* stream);

}  // namespace lehr::kernels
