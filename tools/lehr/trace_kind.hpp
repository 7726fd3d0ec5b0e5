// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

namespace lehr::tools {

/// Attention trace or request trace? A file called .safetensors means to be the first, whatever is
/// in it. Else: a safetensors file starts with a 64-bit length whose top bytes are zero; no line of
/// JSON has a zero byte.
inline bool is_attention_trace(std::span<const std::byte> bytes, std::string_view name) {
  if (name.ends_with(".zst")) name.remove_suffix(4);
  if (name.ends_with(".safetensors")) return true;
  const auto head = bytes.first(std::min<std::size_t>(bytes.size(), 8));
  return std::find(head.begin(), head.end(), std::byte{0}) != head.end();
}

}  // namespace lehr::tools
