// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/attend_plan.hpp"
#include "kernels/cuda/detail/step_kernel.cuh"
#include "kernels/sparse_step.hpp"

namespace lehr::kernels {
namespace {

/// What one launch cannot do.
Status check_offered(const StepShape& shape, const AttendParams& attend) {
  const std::uint32_t own = 1U << static_cast<unsigned>(shape.dtype);
  if (shape.head_dim == 64 || shape.head_dim == 128) {
    if (shape.rows() <= 8 && (attend.formats == 0 || attend.formats == own)) return {};
  }
  return unsupported(
      "a step as one launch: head_dim 64 or 128, at most 8 query rows a group and 16-bit pages");
}

std::uint32_t aligned(std::uint32_t bytes) { return (bytes + 127) / 128 * 128; }

}  // namespace

Status sparse_step_cuda(const StepShape& shape, const SparseStep& step, const AttendTuning& tuning,
                        void* workspace, std::size_t workspace_bytes, void* stream) {
  LEHR_TRY(check_sparse_step(shape, step));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_offered(shape, step.attend));
  if (tuning.ctas_per_sm > 1) return unsupported("a step as one launch: one CTA a SM");
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const std::uint32_t tile = shape.head_dim == 64
                                 ? cuda::BlockLayout<64, cuda::PageForms::k16Bit>::tile
                                 : cuda::BlockLayout<128, cuda::PageForms::k16Bit>::tile;
  LEHR_ASSIGN(const cuda::AttendPlan plan, cuda::plan_attend(shape, step.attend, tuning, workspace,
                                                             workspace_bytes, device, 1, tile));
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));

  cuda::StepArgs args{
      plan.args, step.score, step.select, step.resolve, step.feedback, plan.grid_words, 0, 0, 0};
  args.keys_at =
      aligned(cuda::score_bytes(shape.head_dim, shape.rows(), device.bulk_copy, cuda::kStepWarps));
  args.scratch_at = args.keys_at + aligned(shape.max_pages * 4);
  args.shared_at = args.scratch_at + aligned(sizeof(cuda::SelectScratch));
  const std::uint32_t choosing = args.shared_at + aligned(sizeof(cuda::ScoreShared));
  if (choosing > device.shared_bytes) {
    return unsupported("a step as one launch: keys of " + std::to_string(shape.max_pages) +
                       " pages do not fit into shared memory");
  }
  const std::uint32_t shared = choosing > plan.shared ? choosing : plan.shared;
  const cuda::StepKernel kernel =
      shape.dtype == DType::kF16 ? cuda::step_f16(shape.head_dim) : cuda::step_bf16(shape.head_dim);
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
  // misses and absent; taken is carried on.
  if (step.resolve.table != nullptr) LEHR_CUDA_TRY(cudaMemsetAsync(step.resolve.counters, 0, 8, s));
  return cuda::launch_together(kernel, dim3(plan.ctas), dim3(plan.threads), shared, s, args);
}

}  // namespace lehr::kernels
