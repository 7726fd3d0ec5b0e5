// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace lehr::kernels {

/// Where the best copy of a page lies, in one word: its address (HBM slot, pinned host memory or a
/// peer's HBM; always 128-byte aligned, as the device sees it) with flags in the seven low bits.
/// 0 means absent. A page table is an array of these at a fixed address, one for each sequence, KV
/// group and logical page; the device reads it, so residency may change between replays of a
/// captured graph.
using PageEntry = std::uint64_t;

inline constexpr PageEntry kAbsentPage = 0;
inline constexpr PageEntry kEntryOverLink = 1;    ///< reading it crosses a link (host or peer)
inline constexpr unsigned kEntryFormatShift = 1;  ///< two bits: DType of the stored page
inline constexpr PageEntry kEntryFormatMask = 3ULL << kEntryFormatShift;
inline constexpr PageEntry kEntryFlagMask = 127;
inline constexpr std::uint64_t kPageAlignment = 128;

constexpr PageEntry make_entry(std::uint64_t address, bool over_link, DType format) {
  return address | (over_link ? kEntryOverLink : 0) |
         (static_cast<PageEntry>(format) << kEntryFormatShift);
}
constexpr std::uint64_t entry_address(PageEntry entry) { return entry & ~kEntryFlagMask; }
constexpr bool entry_over_link(PageEntry entry) { return (entry & kEntryOverLink) != 0; }
constexpr DType entry_format(PageEntry entry) {
  return static_cast<DType>((entry & kEntryFormatMask) >> kEntryFormatShift);
}

/// A stored page is K [tokens][dim], then V [tokens][dim], then its scales:
///   fp16, bf16  none
///   e4m3        float k_scale, float v_scale, 8 bytes of zero
///   int8        K: one fp16 a channel for each group of up to 32 tokens; then V: one fp16 a token
///   for each
///               group of 32 channels
constexpr std::uint32_t scale_bytes(DType format, std::uint32_t page_tokens,
                                    std::uint32_t head_dim) {
  if (format == DType::kE4m3) return 16;
  if (format == DType::kInt8) {
    return (page_tokens + 31) / 32 * head_dim * 2 + page_tokens * (head_dim / 32) * 2;
  }
  return 0;
}
constexpr std::uint32_t stored_page_bytes(DType format, std::uint32_t page_tokens,
                                          std::uint32_t head_dim) {
  return 2 * page_tokens * head_dim * element_bytes(format) +
         scale_bytes(format, page_tokens, head_dim);
}
/// Distance of slots that hold such pages: the stored bytes, rounded up to the alignment.
constexpr std::uint32_t slot_bytes(DType format, std::uint32_t page_tokens,
                                   std::uint32_t head_dim) {
  const auto align = static_cast<std::uint32_t>(kPageAlignment);
  return (stored_page_bytes(format, page_tokens, head_dim) + align - 1) / align * align;
}

}  // namespace lehr::kernels
