// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/half.hpp"
#include "kernels/page_entry.hpp"

namespace lehr::kernels::reference {

inline std::uint16_t half_at(const void* base, std::size_t index) {
  std::uint16_t h = 0;
  std::memcpy(&h, static_cast<const unsigned char*>(base) + 2 * index, 2);
  return h;
}
inline float value_at(DType type, const void* base, std::size_t index) {
  return load_16(type, half_at(base, index));
}
inline const void* page_address(PageEntry entry) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(entry_address(entry)));
}

/// Pages of a group in list order: all of a dense call, or the selected ones.
struct PageList {
  const std::uint32_t* selected;
  std::uint32_t count;
  std::uint32_t page(std::uint32_t i) const { return selected != nullptr ? selected[i] : i; }
};

}  // namespace lehr::kernels::reference
