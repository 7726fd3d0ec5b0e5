// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/feedback.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;

__global__ void feedback_kernel(StepShape shape, FeedbackParams p) {
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  cuda::ListItem item;
  if (!cuda::list_item(shape, p, item)) return;
  const std::size_t group = item.group;
  const std::size_t pitch = p.selection != nullptr ? p.selection_pitch : shape.max_pages;
  const std::uint32_t rows = shape.rows();
  const auto* pairs =
      reinterpret_cast<const float2*>(p.pairs) + (group * pitch + item.position) * rows;
  const auto* totals = reinterpret_cast<const float2*>(p.totals) + group * rows;
  float sum = 0.0F, peak = 0.0F;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float2 part = pairs[r], total = totals[r];
    float share = part.y > 0.0F ? part.y * exp2f(part.x - total.x) / total.y : 0.0F;
    if (!(share >= 0.0F)) share = 0.0F;  // a NaN in the sequence says nothing about heat
    share = fminf(share, 1.0F);
    sum += share;
    peak = fmaxf(peak, share);
  }
  const float mean = sum / static_cast<float>(rows);
  const std::uint32_t step = *p.step;
  PageHeat heat = p.heat[group * shape.max_pages + item.page];
  const bool known = heat.frequency > 0.0F;
  const float fade = known ? powf(p.decay, static_cast<float>(step - heat.step)) : 0.0F;
  heat.frequency = heat.frequency * fade + 1.0F;
  heat.mean = known ? heat.mean + p.blend * (mean - heat.mean) : mean;
  heat.peak = fmaxf(heat.peak * fade, peak);
  heat.step = step;
  p.heat[group * shape.max_pages + item.page] = heat;
}

}  // namespace

Status feedback_cuda(const StepShape& shape, const FeedbackParams& params, void* stream) {
  LEHR_TRY(check_feedback(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const std::uint32_t items =
      params.selection != nullptr ? params.selection_pitch : shape.max_pages;
  return cuda::launch(feedback_kernel, cuda::grid_over(shape, items, kThreads), dim3(kThreads), 0,
                      s, device.bulk_copy, shape, params);
}

}  // namespace lehr::kernels
