// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/feedback.hpp"

namespace lehr::kernels::cuda {

/// Brings the heat of one list position's page up to date. Reads past L1: other CTAs of the same
/// launch may have written the pairs.
__device__ __forceinline__ void update_heat(const StepShape& shape, const FeedbackParams& p,
                                            std::size_t group, std::uint32_t position) {
  const std::size_t pitch = p.selection != nullptr ? p.selection_pitch : shape.max_pages;
  const std::uint32_t page =
      p.selection != nullptr ? __ldcg(p.selection + group * pitch + position) : position;
  if (page >= shape.max_pages) return;
  const std::uint32_t rows = shape.rows();
  const auto* pairs = reinterpret_cast<const float2*>(p.pairs) + (group * pitch + position) * rows;
  const auto* totals = reinterpret_cast<const float2*>(p.totals) + group * rows;
  float sum = 0.0F, peak = 0.0F;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float2 part = __ldcg(pairs + r), total = __ldcg(totals + r);
    float share = part.y > 0.0F ? part.y * exp2f(part.x - total.x) / total.y : 0.0F;
    if (!(share >= 0.0F)) share = 0.0F;  // a NaN in the sequence says nothing about heat
    share = fminf(share, 1.0F);
    sum += share;
    peak = fmaxf(peak, share);
  }
  const float mean = sum / static_cast<float>(rows);
  const std::uint32_t step = *p.step;
  PageHeat heat = p.heat[group * shape.max_pages + page];
  const bool known = heat.frequency > 0.0F;
  const float fade = known ? powf(p.decay, static_cast<float>(step - heat.step)) : 0.0F;
  heat.frequency = heat.frequency * fade + 1.0F;
  heat.mean = known ? heat.mean + p.blend * (mean - heat.mean) : mean;
  heat.peak = fmaxf(heat.peak * fade, peak);
  heat.step = step;
  p.heat[group * shape.max_pages + page] = heat;
}

}  // namespace lehr::kernels::cuda
