// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/step_kernel.cuh"

namespace lehr::kernels::cuda {

StepKernel step_bf16(std::uint32_t head_dim) {
  return head_dim == 64 ? step_kernel<__nv_bfloat16, 64> : step_kernel<__nv_bfloat16, 128>;
}

}  // namespace lehr::kernels::cuda
