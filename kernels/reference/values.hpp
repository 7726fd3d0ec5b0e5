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
/// Memory that a word names: entries and destinations are shared with the device as numbers.
inline unsigned char* memory_at(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(address));
}
inline const void* page_address(PageEntry entry) { return memory_at(entry_address(entry)); }

/// Pages of a group in list order: all of a dense call, or the selected ones.
struct PageList {
  const std::uint32_t* selected;
  std::uint32_t count;
  std::uint32_t page(std::uint32_t i) const { return selected != nullptr ? selected[i] : i; }
};

}  // namespace lehr::kernels::reference
