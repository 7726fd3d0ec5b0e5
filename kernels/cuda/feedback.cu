// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/heat.cuh"
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
  cuda::update_heat(shape, p, item.group, item.position);
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
