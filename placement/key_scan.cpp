// SPDX-License-Identifier: Apache-2.0
#include "placement/key_scan.hpp"

#include <array>
#include <cstring>

#include "kernels/base/simd.hpp"

namespace lehr::placement {

LEHR_VECTOR_CLONES
ScanFound scan_pages(const ScanColumns& columns, const ScanRule& rule) {
  constexpr std::uint32_t kLanes = 16;
  const ScanRule r = rule;
  const float* const odds = columns.odds;
  const std::uint8_t* const inside = columns.inside;
  const Step* const last_read = columns.last_read;
  std::array<float, kLanes> sum{};
  std::array<std::uint8_t, kScanPages> found{};
  for (std::uint32_t i = 0; i < kScanPages; i += kLanes) {
    for (std::uint32_t j = 0; j < kLanes; ++j) {
      const float raw = odds[i + j];
      const float some = raw > 0 ? raw : 0;
      const float p = some < 1 ? some : 1;
      const float weighted = p * r.weight;
      const auto gap = static_cast<float>(static_cast<std::int32_t>(r.now - last_read[i + j]));
      const float u = (weighted < 1 ? weighted : 1) + r.recency / (2 + gap);
      const std::int32_t in = inside[i + j] != 0 ? -1 : 0;
      const std::int32_t low = u <= r.inside_most ? -1 : 0;
      const std::int32_t high = u >= r.outside_least ? -1 : 0;
      const std::int32_t likely = p >= r.least_odds ? -1 : 0;
      sum[j] += in != 0 ? 0.0F : p;
      found[i + j] = static_cast<std::uint8_t>(((in & low) | (~in & high & likely)) & 1);
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
