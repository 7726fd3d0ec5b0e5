// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/reuse.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::tools {
namespace {

constexpr std::uint32_t kNobody = UINT32_MAX;

/// Positions before the stream is renumbered: enough that renumbering costs O(1) an access.
std::uint32_t positions_for(std::uint32_t items) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::uint64_t{items} * 2 + 1024, UINT32_MAX - 2));
}

}  // namespace

ReuseDistance::ReuseDistance(std::uint32_t items)
    : last_(items, 0), owner_(positions_for(items), kNobody), tree_(owner_.size() + 1, 0) {}

void ReuseDistance::add(std::uint32_t position, std::int32_t delta) {
  for (std::size_t i = std::size_t{position} + 1; i < tree_.size(); i += i & (~i + 1)) {
    tree_[i] += delta;
  }
}

std::uint32_t ReuseDistance::sum_to(std::uint32_t position) const {
  std::int32_t sum = 0;
  for (std::size_t i = std::size_t{position} + 1; i > 0; i &= i - 1) sum += tree_[i];
  return static_cast<std::uint32_t>(sum);
}

/// Renumbers the live positions 0, 1, 2... in their order.
void ReuseDistance::compact() {
  std::fill(tree_.begin(), tree_.end(), 0);
  std::uint32_t next = 0;
  for (std::uint32_t position = 0; position < now_; ++position) {
    const std::uint32_t item = owner_[position];
    if (item == kNobody) continue;
    owner_[position] = kNobody;
    owner_[next] = item;
    last_[item] = next + 1;
    add(next, 1);
    ++next;
  }
  now_ = next;
}

std::optional<std::uint32_t> ReuseDistance::access(std::uint32_t item) {
  if (now_ == owner_.size()) compact();
  std::optional<std::uint32_t> distance;
  if (const std::uint32_t before = last_[item]; before != 0) {
    distance = live_ - sum_to(before - 1);
    add(before - 1, -1);
    owner_[before - 1] = kNobody;
  } else {
    ++live_;
  }
  add(now_, 1);
  owner_[now_] = item;
  last_[item] = ++now_;
  return distance;
}

void ReuseProfile::access(std::uint32_t item) {
  ++accesses_;
  if (const auto distance = distance_.access(item)) {
    ++count_[*distance];
  } else {
    ++first_;
  }
}

std::optional<std::uint32_t> ReuseProfile::percentile(double share) const {
  const std::uint64_t repeated = accesses_ - first_;
  if (repeated == 0) return std::nullopt;
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(repeated)));
  std::uint64_t seen = 0;
  for (std::uint32_t distance = 0; distance < count_.size(); ++distance) {
    seen += count_[distance];
    if (seen >= std::max<std::uint64_t>(1, wanted)) return distance;
  }
  return static_cast<std::uint32_t>(count_.size()) - 1;
}

double ReuseProfile::lru_hit_ratio(std::uint64_t capacity) const {
  if (accesses_ == 0) return 0;
  std::uint64_t hits = 0;
  for (std::uint64_t d = 0; d < std::min<std::uint64_t>(capacity, count_.size()); ++d) {
    hits += count_[d];
  }
  return static_cast<double>(hits) / static_cast<double>(accesses_);
}

}  // namespace lehr::tools
