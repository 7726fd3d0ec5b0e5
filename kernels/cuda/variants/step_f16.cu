// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/step_kernel.cuh"

namespace lehr::kernels::cuda {

StepKernel step_f16(std::uint32_t head_dim) {
  return head_dim == 64 ? step_kernel<__half, 64> : step_kernel<__half, 128>;
}

}  // namespace lehr::kernels::cuda
