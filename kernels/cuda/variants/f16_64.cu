// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/attend_variants.hpp"

namespace lehr::kernels::cuda {

std::span<const Variant> variants_f16_64() { return variants_of<__half, 64>(); }

}  // namespace lehr::kernels::cuda
