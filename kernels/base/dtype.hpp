// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lehr {

/// How an element of K, V, Q or the output is stored. Values are append-only: page entries carry
/// them.
enum class DType : std::uint8_t {
  kF16 = 0,
  kBf16 = 1,
  kE4m3 = 2,  ///< 8-bit float (1-4-3, finite only), one scale a page and head for K and one for V
  kInt8 = 3,  ///< symmetric 8-bit integers with group scales (quantize.hpp)
};

constexpr std::uint32_t element_bytes(DType type) {
  return type == DType::kF16 || type == DType::kBf16 ? 2U : 1U;
}

constexpr const char* name(DType type) {
  switch (type) {
    case DType::kF16:
      return "fp16";
    case DType::kBf16:
      return "bf16";
    case DType::kE4m3:
      return "e4m3";
    case DType::kInt8:
      return "int8";
  }
  return "unknown";
}

}  // namespace lehr
