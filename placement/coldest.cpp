// SPDX-License-Identifier: Apache-2.0
#include "placement/coldest.hpp"

#include <algorithm>
#include <array>

namespace lehr::placement {

namespace {

constexpr std::uint32_t kFineBits = 5;
constexpr std::size_t kBins = std::size_t{1} << (16 - kFineBits);

/// Counts `bin_of(i)` for i below n. Four tables in turn: neighbours are often alike, and adding
/// twice to one counter waits for itself.
template <std::size_t kCount, class BinOf>
std::array<std::uint32_t, kCount> count_bins(std::size_t n, BinOf bin_of) {
  std::array<std::array<std::uint32_t, kCount>, 4> tables{};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t t = 0; t < 4; ++t) ++tables[t][bin_of(i + t)];
  }
  for (; i < n; ++i) ++tables[0][bin_of(i)];
  for (std::size_t t = 1; t < 4; ++t) {
    for (std::size_t b = 0; b < kCount; ++b) tables[0][b] += tables[t][b];
  }
  return tables[0];
}

auto coarse_bins(std::span<const std::uint16_t> scores) {
  const std::uint16_t* const s = scores.data();
  return count_bins<kBins>(scores.size(),
                           [s](std::size_t i) { return std::size_t{s[i]} >> kFineBits; });
}

}  // namespace

void Coldest::choose(std::span<const std::uint16_t> scores, std::size_t count,
                     std::vector<std::uint32_t>& out) {
  out.clear();
  count = std::min(count, scores.size());
  if (count == 0) return;
  const auto bins = coarse_bins(scores);
  std::size_t below = 0;
  std::size_t bin = 0;
  while (below + bins[bin] < count) below += bins[bin++];

  // Append without a branch: where the next candidate goes is written in any case.
  const auto limit = static_cast<std::uint32_t>((bin + 1) << kFineBits);
  candidates_.resize(below + bins[bin] + 1);
  std::uint32_t* next = candidates_.data();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    *next = static_cast<std::uint32_t>(i);
    next += scores[i] < limit;
  }
  candidates_.pop_back();

  // Of the threshold's bin the lowest scores, and of the last score as many as are still wanted.
  constexpr std::uint32_t kFineMask = (1U << kFineBits) - 1;
  constexpr std::size_t kFineBins = std::size_t{1} << kFineBits;
  const auto fine = count_bins<kFineBins + 1>(candidates_.size(), [&](std::size_t i) {
    const std::uint32_t score = scores[candidates_[i]];
    return score >> kFineBits == bin ? score & kFineMask : kFineBins;
  });
  std::size_t wanted = count - below;
  std::uint32_t last = 0;
  while (wanted > fine[last]) wanted -= fine[last++];
  const std::uint32_t threshold = (static_cast<std::uint32_t>(bin) << kFineBits) + last;
  out.reserve(count);
  for (const std::uint32_t c : candidates_) {
    if (out.size() == count) break;
    if (scores[c] < threshold) {
      out.push_back(c);
    } else if (scores[c] == threshold && wanted > 0) {
      out.push_back(c);
      --wanted;
    }
  }
}

void Coldest::quantiles(std::span<const std::uint16_t> scores, std::span<const double> shares,
                        std::span<std::uint16_t> out) {
  const auto bins = coarse_bins(scores);
  std::size_t bin = 0;
  std::size_t up_to = bins[0];
  for (std::size_t s = 0; s < shares.size(); ++s) {
    const auto rank = static_cast<std::size_t>(shares[s] * static_cast<double>(scores.size()));
    while (up_to <= rank && bin + 1 < kBins) up_to += bins[++bin];
    out[s] = static_cast<std::uint16_t>((bin << kFineBits) + (1U << kFineBits) - 1);
  }
}

}  // namespace lehr::placement
