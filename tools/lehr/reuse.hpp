// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lehr::tools {

/// Exact reuse (stack) distances of a stream of accesses to items 0..items-1: how many other items
/// were accessed since the last access to the same one. O(log items) an access; memory linear in
/// items, whatever the length of the stream.
class ReuseDistance {
 public:
  explicit ReuseDistance(std::uint32_t items);

  /// The distance, or nothing on an item's first access.
  std::optional<std::uint32_t> access(std::uint32_t item);

 private:
  void add(std::uint32_t position, std::int32_t delta);
  std::uint32_t sum_to(std::uint32_t position) const;
  void compact();

  std::vector<std::uint32_t> last_;   ///< an item's last position + 1, 0 before its first access
  std::vector<std::uint32_t> owner_;  ///< the item whose last access a position is
  std::vector<std::int32_t> tree_;    ///< Fenwick tree: 1 at each item's last position
  std::uint32_t now_ = 0;
  std::uint32_t live_ = 0;
};

/// A distribution of reuse distances, and what follows from it exactly.
class ReuseProfile {
 public:
  explicit ReuseProfile(std::uint32_t items) : distance_(items), count_(items, 0) {}

  void access(std::uint32_t item);

  std::uint64_t accesses() const { return accesses_; }
  std::uint64_t first_accesses() const { return first_; }
  /// The smallest distance that at least `share` of the repeated accesses do not pass; nothing
  /// without one.
  std::optional<std::uint32_t> percentile(double share) const;
  /// Share of all accesses that LRU with room for `capacity` items would serve.
  double lru_hit_ratio(std::uint64_t capacity) const;

 private:
  ReuseDistance distance_;
  std::vector<std::uint64_t> count_;  ///< repeated accesses at each distance
  std::uint64_t accesses_ = 0;
  std::uint64_t first_ = 0;
};

}  // namespace lehr::tools
