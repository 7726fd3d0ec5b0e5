// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/attend_variants.hpp"

namespace lehr::kernels::cuda {

std::span<const Variant> variants_bf16_256() { return variants_of<__nv_bfloat16, 256>(); }

}  // namespace lehr::kernels::cuda
