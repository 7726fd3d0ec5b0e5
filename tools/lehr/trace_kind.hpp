// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace lehr::tools {

/// Attention trace or request trace? A safetensors file starts with a 64-bit length whose top bytes
/// are zero; no line of JSON has a zero byte.
inline bool is_attention_trace(std::span<const std::byte> bytes) {
  const auto head = bytes.first(std::min<std::size_t>(bytes.size(), 8));
  return std::find(head.begin(), head.end(), std::byte{0}) != head.end();
}

}  // namespace lehr::tools
