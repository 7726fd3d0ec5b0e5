// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace lehr::fuzz {

/// The input at an address aligned as a mapping's is.
class AlignedInput {
 public:
  AlignedInput(const std::uint8_t* data, std::size_t size) : words_(size / 8 + 1), size_(size) {
    if (size > 0) std::memcpy(words_.data(), data, size);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)).first(size_); }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string_view()
                   : std::string_view(reinterpret_cast<const char*>(data), size);
}

/// Like assert, in every build.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

}  // namespace lehr::fuzz
