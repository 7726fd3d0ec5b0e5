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

/// What the host reads of a page's heat, brought up to date: a quarter of the bytes.
struct HeatDigest {
  std::uint16_t frequency;  ///< fp16 bits
  std::uint8_t mean;        ///< codes of shares (base/mass.hpp); 255: none, as of a page never read
  std::uint8_t peak;
};
static_assert(sizeof(HeatDigest) == 4);

/// The digest of every page, written in steps that are multiples of `every`; else nothing is
/// touched, so a captured step holds the launch and the host copies every N steps. `decay` is
/// feedback's.
struct HeatDigestParams {
  const PageHeat* heat = nullptr;
  const std::uint32_t* lengths = nullptr;
  const std::uint32_t* step = nullptr;
  HeatDigest* digest = nullptr;  ///< [sequences][kv_heads][max_pages]; past a sequence's end: none
  std::uint32_t every = 1;
  float decay = 0.95F;
};
static_assert(sizeof(HeatDigestParams) == 40 && std::is_standard_layout_v<HeatDigestParams>);

Status check_heat_digest(const StepShape& shape, const HeatDigestParams& params);
Status heat_digest_reference(const StepShape& shape, const HeatDigestParams& params);
Status heat_digest_cuda(const StepShape& shape, const HeatDigestParams& params, void* stream);

Status check_feedback(const StepShape& shape, const FeedbackParams& params);
Status feedback_reference(const StepShape& shape, const FeedbackParams& params);
Status feedback_cuda(const StepShape& shape, const FeedbackParams& params, void* stream);

}  // namespace lehr::kernels
