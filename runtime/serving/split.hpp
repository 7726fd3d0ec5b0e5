// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "placement/division.hpp"

namespace lehr::serving {

/// What of a sequence's KV a device holds: some KV heads, some layers, or a range of its tokens in
/// whole pages, with the pages that are still written on the last device.
enum class Split : std::uint8_t { kHeads, kLayers, kTokens };

/// A device's first unit, and how many it has.
struct Range {
  std::uint32_t first = 0, count = 0;

  std::uint32_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

/// Contiguous ranges of so many units, one after the other.
inline std::vector<Range> ranges_of(std::span<const std::uint32_t> units) {
  std::vector<Range> ranges;
  std::uint32_t first = 0;
  for (const std::uint32_t count : units) {
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

/// Layers or KV heads by the devices' weights. kOutOfRange where there are fewer than devices.
inline Result<std::vector<std::uint32_t>> divided(std::uint32_t units, Split split,
                                                  std::span<const double> weights) {
  if (units >= weights.size()) return placement::divide(units, weights);
  return invalid(std::to_string(weights.size()) + " devices for " + std::to_string(units) +
                     (split == Split::kLayers ? " layers" : " KV heads") + ": expected one each",
                 Reason::kOutOfRange);
}

/// As many units of `pages` as each device gets by its weight, in whole pages; what is left over
/// goes to the last, and all of it where there are fewer pages than devices.
inline std::vector<std::uint32_t> token_ranges(std::uint32_t pages,
                                               std::span<const double> weights) {
  if (auto dealt = placement::divide(pages, weights)) return *std::move(dealt);
  std::vector<std::uint32_t> all_on_last(weights.size(), 0);
  if (!all_on_last.empty()) all_on_last.back() = pages;
  return all_on_last;
}

}  // namespace lehr::serving
