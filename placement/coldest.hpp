// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lehr::placement {

/// Chooses the pages of lowest score: one pass counts the scores, a second takes what lies below
/// the threshold. Exact; of equal scores the lower index wins. Keeps its scratch memory between
/// calls.
class Coldest {
 public:
  /// Indices of the `count` lowest scores (all if there are fewer), in rising order.
  void choose(std::span<const std::uint16_t> scores, std::size_t count,
              std::vector<std::uint32_t>& out);

  /// For each share in [0, 1], rising: the score below or at which more than that share lies, to
  /// within a bin of 32.
  void quantiles(std::span<const std::uint16_t> scores, std::span<const double> shares,
                 std::span<std::uint16_t> out);

 private:
  std::vector<std::uint32_t> candidates_;  ///< indices up to the threshold's bin
};

}  // namespace lehr::placement
