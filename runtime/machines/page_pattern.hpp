// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <span>

#include "kernels/base/ids.hpp"
#include "kernels/base/rng.hpp"

namespace lehr::runtime {

/// Contents that say which page and version they are: every 8 bytes depend on page, version and
/// place.
class PagePattern {
 public:
  PagePattern(PageId page, std::uint32_t version)
      : seed_(Rng::mix((std::uint64_t{page} << 32) | version)) {}

  void fill(std::span<std::byte> out) const {
    std::size_t i = 0;
    for (; i + 8 <= out.size(); i += 8) {
      const std::uint64_t w = word(i);
      std::memcpy(out.data() + i, &w, 8);
    }
    const std::uint64_t last = word(i);
    std::memcpy(out.data() + i, &last, out.size() - i);
  }

  bool matches(std::span<const std::byte> bytes) const {
    std::uint64_t difference = 0;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      std::uint64_t w = 0;
      std::memcpy(&w, bytes.data() + i, 8);
      difference |= w ^ word(i);
    }
    const std::uint64_t last = word(i);
    return difference == 0 && std::memcmp(&last, bytes.data() + i, bytes.size() - i) == 0;
  }

 private:
  std::uint64_t word(std::size_t offset) const {
    return (seed_ + offset) * 0x9E3779B97F4A7C15ULL ^ (seed_ >> 29);
  }
  std::uint64_t seed_;
};

}  // namespace lehr::runtime
