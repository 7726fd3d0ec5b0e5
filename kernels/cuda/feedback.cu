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

/// mass_code (base/mass.hpp).
__device__ std::uint8_t code_of(float share) {
  if (!(share > 0.0F)) return 255;
  const float code = roundf(-8.0F * log2f(share));
  return static_cast<std::uint8_t>(fminf(fmaxf(code, 0.0F), 255.0F));
}

__global__ void heat_digest_kernel(StepShape shape, HeatDigestParams p) {
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t step = *p.step;
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  const std::uint32_t page = blockIdx.x * kThreads + threadIdx.x;
  if (step % p.every != 0 || group >= shape.groups() || page >= shape.max_pages) return;
  const std::size_t at = std::size_t{group} * shape.max_pages + page;
  const PageHeat heat =
      page < cuda::sequence_pages(shape, p.lengths, group) ? p.heat[at] : PageHeat{0, 0, 0, 0};
  const bool known = heat.frequency > 0.0F;
  const float fade = known ? powf(p.decay, static_cast<float>(step - heat.step)) : 0.0F;
  p.digest[at] = {__half_as_ushort(__float2half_rn(heat.frequency * fade)),
                  known ? code_of(heat.mean) : std::uint8_t{255},
                  known ? code_of(heat.peak * fade) : std::uint8_t{255}};
}

}  // namespace

Status heat_digest_cuda(const StepShape& shape, const HeatDigestParams& params, void* stream) {
  LEHR_TRY(check_heat_digest(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  return cuda::launch(heat_digest_kernel, cuda::grid_over(shape, shape.max_pages, kThreads),
                      dim3(kThreads), 0, s, device.bulk_copy, shape, params);
}

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
