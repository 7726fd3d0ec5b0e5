// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lehr::contents {

/// Which pages a step reads: the rules of kernels/select.hpp, for any head size.
struct ChoiceRule {
  enum class By : std::uint8_t { kAll, kCount, kRatio, kMass };
  By by = By::kAll;
  double amount = 1.0;       ///< kRatio, kMass: (0, 1]; kCount: pages
  std::uint32_t sinks = 1;   ///< first pages, always in
  std::uint32_t recent = 4;  ///< last pages, always in; the tail is, in any case
};

/// Pages by score, highest first, ties to the lower page; what is always in counts towards the
/// number. `scale` turns scores into logits, for kMass. The result is ascending.
void choose_pages(const ChoiceRule& rule, std::span<const float> scores, double scale,
                  std::vector<std::uint32_t>& out);

}  // namespace lehr::contents
