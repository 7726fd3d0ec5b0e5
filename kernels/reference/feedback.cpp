// SPDX-License-Identifier: Apache-2.0
#include "kernels/feedback.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "kernels/base/half.hpp"
#include "kernels/base/mass.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {

Status check_feedback(const StepShape& shape, const FeedbackParams& params) {
  LEHR_TRY(check_shape(shape));
  if (!(params.decay >= 0.0F && params.decay <= 1.0F) ||
      !(params.blend >= 0.0F && params.blend <= 1.0F)) {
    return invalid("decay and blend must be 0 to 1");
  }
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.pairs, 8, "pairs"));
  LEHR_TRY(check_pointer(params.totals, 8, "totals"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.step, 4, "step"));
  LEHR_TRY(check_pointer(params.heat, 16, "heat"));
  if ((params.selection == nullptr) != (params.counts == nullptr)) {
    return invalid("selection and counts go together: one of them is null");
  }
  if (params.selection != nullptr &&
      (params.selection_pitch == 0 || params.selection_pitch > shape.max_pages)) {
    return invalid(fmt::format("selection_pitch {}; 1 to max_pages ({}) is expected",
                               params.selection_pitch, shape.max_pages),
                   Reason::kOutOfRange);
  }
  return {};
}

Status feedback_reference(const StepShape& shape, const FeedbackParams& params) {
  LEHR_TRY(check_feedback(shape, params));
  const std::uint32_t pitch =
      params.selection != nullptr ? params.selection_pitch : shape.max_pages;
  const std::uint32_t rows = shape.rows();
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    reference::PageList list{
        nullptr,
        std::min(shape.pages_for(params.lengths[group / shape.kv_heads]), shape.max_pages)};
    if (params.selection != nullptr) {
      list = {params.selection + group * pitch, std::min(params.counts[group], pitch)};
    }
    for (std::uint32_t i = 0; i < list.count; ++i) {
      float sum = 0;
      float peak = 0;
      for (std::uint32_t r = 0; r < rows; ++r) {
        const SoftmaxPair page = params.pairs[(group * pitch + i) * rows + r];
        const SoftmaxPair total = params.totals[group * rows + r];
        float share = page.d > 0 ? page.d * std::exp2(page.m - total.m) / total.d : 0.0F;
        if (!(share >= 0.0F)) share = 0.0F;  // a NaN in the sequence says nothing about heat
        share = std::min(share, 1.0F);
        sum += share;
        peak = std::max(peak, share);
      }
      PageHeat& heat = params.heat[group * shape.max_pages + list.page(i)];
      const bool known = heat.frequency > 0;
      const std::uint32_t age = *params.step - heat.step;
      const float fade = known ? std::pow(params.decay, static_cast<float>(age)) : 0.0F;
      const float mean = sum / static_cast<float>(rows);
      heat.frequency = heat.frequency * fade + 1.0F;
      heat.mean = known ? heat.mean + params.blend * (mean - heat.mean) : mean;
      heat.peak = std::max(heat.peak * fade, peak);
      heat.step = *params.step;
    }
  }
  return {};
}

Status check_heat_digest(const StepShape& shape, const HeatDigestParams& params) {
  LEHR_TRY(check_shape(shape));
  if (!(params.decay >= 0.0F && params.decay <= 1.0F)) return invalid("decay must be 0 to 1");
  if (params.every == 0) return invalid("a digest every 0 steps", Reason::kOutOfRange);
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.heat, 16, "heat"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.step, 4, "step"));
  return check_pointer(params.digest, 4, "digest");
}

Status heat_digest_reference(const StepShape& shape, const HeatDigestParams& params) {
  LEHR_TRY(check_heat_digest(shape, params));
  if (shape.sequences == 0 || *params.step % params.every != 0) return {};
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t pages = shape.pages_for(params.lengths[group / shape.kv_heads]);
    for (std::uint32_t i = 0; i < shape.max_pages; ++i) {
      const PageHeat heat = i < pages ? params.heat[group * shape.max_pages + i] : PageHeat{};
      const bool known = heat.frequency > 0;
      const float fade =
          known ? std::pow(params.decay, static_cast<float>(*params.step - heat.step)) : 0.0F;
      params.digest[group * shape.max_pages + i] = {to_f16(heat.frequency * fade),
                                                    known ? mass_code(heat.mean) : kNoMass,
                                                    known ? mass_code(heat.peak * fade) : kNoMass};
    }
  }
  return {};
}

}  // namespace lehr::kernels
