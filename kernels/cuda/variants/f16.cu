// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/attend_variants.hpp"

namespace lehr::kernels::cuda {

std::span<const Variant> variants_f16() {
  static const auto table = variants_of<__half, PageForms::k16Bit>(DType::kF16);
  return table;
}

}  // namespace lehr::kernels::cuda
