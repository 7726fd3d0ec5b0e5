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
inline constexpr unsigned kEntryFormatShift = 1;  ///< two bits: DType of the stored K
inline constexpr PageEntry kEntryFormatMask = 3ULL << kEntryFormatShift;
inline constexpr unsigned kEntrySplitShift = 3;  ///< two bits: V's DType differs from K's in these
inline constexpr PageEntry kEntryFlagMask = 127;
inline constexpr std::uint64_t kPageAlignment = 128;

/// How a page is stored: K and V may differ (K is the more delicate of the two).
struct PageFormat {
  DType k, v;
  constexpr PageFormat(DType both) : k(both), v(both) {}  // NOLINT: a page of one type is the rule
  constexpr PageFormat(DType of_k, DType of_v) : k(of_k), v(of_v) {}
  constexpr bool operator==(const PageFormat&) const = default;
};

constexpr PageEntry make_entry(std::uint64_t address, bool over_link, PageFormat format) {
  const auto k = static_cast<PageEntry>(format.k), v = static_cast<PageEntry>(format.v);
  return address | (over_link ? kEntryOverLink : 0) | k << kEntryFormatShift |
         (k ^ v) << kEntrySplitShift;
}
constexpr std::uint64_t entry_address(PageEntry entry) { return entry & ~kEntryFlagMask; }
constexpr bool entry_over_link(PageEntry entry) { return (entry & kEntryOverLink) != 0; }
/// Format of K, and of V unless they differ.
constexpr DType entry_format(PageEntry entry) {
  return static_cast<DType>((entry & kEntryFormatMask) >> kEntryFormatShift);
}
constexpr DType entry_v_format(PageEntry entry) {
  return static_cast<DType>((entry >> kEntryFormatShift ^ entry >> kEntrySplitShift) & 3U);
}
constexpr PageFormat entry_formats(PageEntry entry) {
  return {entry_format(entry), entry_v_format(entry)};
}

/// A stored page is K [tokens][dim], V [tokens][dim], then K's scales and V's:
///   fp16, bf16  none
///   e4m3        one float and 12 bytes of zero; where both are e4m3 they share 16 bytes: float
///               k_scale, float v_scale, 8 bytes of zero
///   int8        K: one fp16 a channel for each group of up to 32 tokens, of four significant bits;
///               V: one fp16 a token for each group of 32 channels
constexpr std::uint32_t k_scale_bytes(PageFormat format, std::uint32_t page_tokens,
                                      std::uint32_t head_dim) {
  if (format.k == DType::kE4m3) return 16;
  return format.k == DType::kInt8 ? (page_tokens + 31) / 32 * head_dim * 2 : 0;
}
constexpr std::uint32_t v_scale_bytes(PageFormat format, std::uint32_t page_tokens,
                                      std::uint32_t head_dim) {
  if (format.v == DType::kE4m3) return format.k == DType::kE4m3 ? 0 : 16;
  return format.v == DType::kInt8 ? page_tokens * (head_dim / 32) * 2 : 0;
}
constexpr std::uint32_t scale_bytes(PageFormat format, std::uint32_t page_tokens,
                                    std::uint32_t head_dim) {
  return k_scale_bytes(format, page_tokens, head_dim) +
         v_scale_bytes(format, page_tokens, head_dim);
}
constexpr std::uint32_t stored_page_bytes(PageFormat format, std::uint32_t page_tokens,
                                          std::uint32_t head_dim) {
  return page_tokens * head_dim * (element_bytes(format.k) + element_bytes(format.v)) +
         scale_bytes(format, page_tokens, head_dim);
}
/// Distance of slots that hold such pages: the stored bytes, rounded up to the alignment.
constexpr std::uint32_t slot_bytes(PageFormat format, std::uint32_t page_tokens,
                                   std::uint32_t head_dim) {
  const auto align = static_cast<std::uint32_t>(kPageAlignment);
  return (stored_page_bytes(format, page_tokens, head_dim) + align - 1) / align * align;
}

}  // namespace lehr::kernels
