// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include "kernels/cuda/detail/attend_kernel.cuh"

namespace lehr::kernels::cuda {

/// One compiled form of the attend kernel.
struct Variant {
  DType dtype;
  std::uint32_t head_dim, row_tiles;
  void (*kernel)(AttendArgs);
  std::uint32_t tile_bytes;
};

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
Variant variant(DType dtype) {
  using Layout = BlockLayout<kDim, kForms>;
  return {dtype, kDim, kRowTiles, attend_kernel<T, kDim, kRowTiles, kForms>,
          (Layout::tile + 127) / 128 * 128};
}

template <class T, PageForms kForms>
std::array<Variant, 5> variants_of(DType dtype) {
  return {variant<T, 64, 1, kForms>(dtype), variant<T, 64, 2, kForms>(dtype),
          variant<T, 128, 1, kForms>(dtype), variant<T, 128, 2, kForms>(dtype),
          variant<T, 256, 1, kForms>(dtype)};
}

// One file each, for they take long to compile.
std::span<const Variant> variants_f16();
std::span<const Variant> variants_f16_e4m3();
std::span<const Variant> variants_f16_mixed();
std::span<const Variant> variants_bf16();
std::span<const Variant> variants_bf16_e4m3();
std::span<const Variant> variants_bf16_mixed();

}  // namespace lehr::kernels::cuda
