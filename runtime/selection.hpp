// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"

namespace lehr {

/// How many pages of a KV group a step reads (DESIGN §5, item 2).
struct SelectionRule {
  enum class Kind : std::uint8_t { kAll, kTopRatio, kCount, kMass };

  Kind kind = Kind::kAll;
  double amount = 1.0;       ///< kTopRatio, kMass: a share in (0, 1]; kCount: pages, at least 1
  std::uint32_t sinks = 1;   ///< pages at the start that are always read
  std::uint32_t recent = 4;  ///< pages at the end that are always read; the tail is, even with 0

  /// `all | topk:RATIO | count:N | mass:SHARE`; RATIO and SHARE as 0.1 or 10%. Sinks and recent
  /// keep their defaults.
  static Result<SelectionRule> parse(std::string_view text);
  /// What parse() reads.
  std::string text() const;
};

/// Chooses pages of one KV group from recorded mass.
///
/// Pages are ranked by their code, `mass` alone or, where `peak` is recorded, the mean of the two
/// codes rounded up. That is the geometric mean of a page's share for the group and its share for
/// the query head that wants it most: a page that one head alone asks for ranks by half the octaves
/// higher than one of the same mean that all heads share. Of equals the latest goes first.
/// - topk, count: the first k in rank, k = ceil(ratio * pages);
/// - mass: the shortest head of the ranking whose mean shares reach SHARE of the row's sum
/// (recorded sums
///   are near 1, not 1). The shares are added as integers, so no order of summation shows.
/// Sinks, the recent window and the tail are read besides, and are counted in the ranking like
/// others.
///
/// Costs a few passes over bytes, a handful a page on any instruction set; no allocation once the
/// longest row was seen. Holds scratch memory: one object a thread.
class Selector {
 public:
  explicit Selector(const SelectionRule& rule) : rule_(rule) {}

  const SelectionRule& rule() const { return rule_; }

  /// Indices of the chosen pages among [0, pages), ascending, valid until the next call. `mass` and
  /// `peak` (null where not recorded) point at `pages` codes at least.
  std::span<const std::uint32_t> select(const MassCode* mass, const MassCode* peak,
                                        std::uint32_t pages);

  /// The same, into `out`.
  void select(const MassCode* mass, const MassCode* peak, std::uint32_t pages,
              std::vector<std::uint32_t>& out) {
    const auto chosen = select(mass, peak, pages);
    out.assign(chosen.begin(), chosen.end());
  }

 private:
  void reserve(std::uint32_t pages);

  SelectionRule rule_;
  std::vector<MassCode> keys_;
  std::vector<std::uint32_t> weights_;
  std::vector<std::uint32_t> chosen_;
};

}  // namespace lehr
