// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/attend_variants.hpp"

namespace lehr::kernels::cuda {

std::span<const Variant> variants_bf16() {
  static const auto table = variants_of<__nv_bfloat16, PageForms::k16Bit>(DType::kBf16);
  return table;
}

}  // namespace lehr::kernels::cuda
