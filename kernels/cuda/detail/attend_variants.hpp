// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include "kernels/cuda/detail/attend_kernel.cuh"

namespace lehr::kernels::cuda {

/// One compiled form of the attend kernel.
struct Variant {
  PageForms forms;
  std::uint32_t row_tiles;
  void (*kernel)(AttendArgs);
  std::uint32_t tile_bytes;
};

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
Variant variant() {
  return {kForms, kRowTiles, attend_kernel<T, kDim, kRowTiles, kForms>,
          BlockLayout<kDim, kForms>::tile};
}

/// Two row tiles (16 query rows read a tile once) pay for 16-bit pages only, and where registers
/// hold them.
template <class T, std::uint32_t kDim>
std::span<const Variant> variants_of() {
  static const std::array table = {variant<T, kDim, 1, PageForms::k16Bit>(),
                                   variant<T, kDim, 1, PageForms::kE4m3>(),
                                   variant<T, kDim, 1, PageForms::kMixed>(),
                                   variant < T,
                                   kDim,
                                   kDim == 256 ? 1 : 2,
                                   PageForms::k16Bit > ()};
  return table;
}

// One file each, for they take long to compile.
std::span<const Variant> variants_f16_64();
std::span<const Variant> variants_f16_128();
std::span<const Variant> variants_f16_256();
std::span<const Variant> variants_bf16_64();
std::span<const Variant> variants_bf16_128();
std::span<const Variant> variants_bf16_256();

inline std::span<const Variant> variants(DType dtype, std::uint32_t head_dim) {
  const bool half = dtype == DType::kF16;
  if (head_dim == 64) return half ? variants_f16_64() : variants_bf16_64();
  if (head_dim == 128) return half ? variants_f16_128() : variants_bf16_128();
  return half ? variants_f16_256() : variants_bf16_256();
}

}  // namespace lehr::kernels::cuda
