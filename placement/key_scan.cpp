// SPDX-License-Identifier: Apache-2.0
#include "placement/key_scan.hpp"

#include <array>
#include <cstring>

#include "kernels/base/simd.hpp"

namespace lehr::placement {

// One plain loop for each thing: so they become vector code.
LEHR_VECTOR_CLONES
ScanFound scan_pages(const ScanColumns& columns, const ScanRule& rule) {
  constexpr std::uint32_t kLanes = 16;
  const ScanRule r = rule;
  std::array<float, kScanPages> odds;
  std::array<float, kScanPages> wanted;
  std::array<std::int32_t, kScanPages> inside;
  std::array<std::uint8_t, kScanPages> found;
  for (std::uint32_t i = 0; i < kScanPages; ++i) {
    const float some = columns.odds[i] > 0 ? columns.odds[i] : 0;
    odds[i] = some < 1 ? some : 1;
  }
  for (std::uint32_t i = 0; i < kScanPages; ++i) {
    const auto gap = static_cast<float>(static_cast<std::int32_t>(r.now - columns.last_read[i]));
    const float weighted = odds[i] * r.weight;
    wanted[i] = (weighted < 1 ? weighted : 1) + r.recency / (2 + gap);
  }
  for (std::uint32_t i = 0; i < kScanPages; ++i) inside[i] = columns.inside[i];
  for (std::uint32_t i = 0; i < kScanPages; ++i) {
    const std::int32_t low = wanted[i] <= r.inside_most ? 1 : 0;
    const std::int32_t high = wanted[i] >= r.outside_least ? 1 : 0;
    const std::int32_t likely = odds[i] >= r.least_odds ? 1 : 0;
    found[i] = static_cast<std::uint8_t>((inside[i] & low) | ((inside[i] ^ 1) & high & likely));
  }
  std::array<float, kLanes> sum{};
  for (std::uint32_t i = 0; i < kScanPages; i += kLanes) {
    for (std::uint32_t j = 0; j < kLanes; ++j) {
      sum[j] += odds[i + j] * static_cast<float>(inside[i + j] ^ 1);
    }
  }
  ScanFound out;
  for (std::uint32_t k = 0; k < kScanPages / 8; ++k) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, found.data() + std::size_t{8} * k, sizeof bytes);
    // Gathers the lowest bit of each byte into the top one.
    out.pages |= (bytes * 0x0102040810204080ULL >> 56) << (8 * k);
  }
  for (const float s : sum) out.odds_outside += s;
  return out;
}

LEHR_VECTOR_CLONES
bool side_by_side(const PageId* pages, std::uint32_t count) {
  const PageId first = pages[0];
  std::uint32_t differ = 0;
  for (std::uint32_t i = 0; i < count; ++i) differ |= pages[i] - first - i;
  return differ == 0;
}

}  // namespace lehr::placement
