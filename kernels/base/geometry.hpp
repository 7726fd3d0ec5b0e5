// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/units.hpp"

namespace lehr {

/// The shape of a model's KV cache. `layers` counts the layers that Lehr serves (a trace may record
/// a part of a model's).
struct KvGeometry {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t element_bytes = 0;

  /// K and V of `page_tokens` tokens of one layer and KV head.
  constexpr Bytes page_bytes() const { return Bytes{2} * page_tokens * head_dim * element_bytes; }
  constexpr std::uint32_t groups() const { return layers * kv_heads; }
  constexpr std::uint32_t pages_for(std::uint64_t tokens) const {
    return static_cast<std::uint32_t>((tokens + page_tokens - 1) / page_tokens);
  }
};

}  // namespace lehr
