// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::runtime::cuda {

/// What lies in a slot once everything enqueued has run.
struct SlotContents {
  PageId page = kNoPage;
  std::uint32_t version = 0;
  std::uint32_t tokens = 0;

  bool is(PageId of, std::uint32_t at) const { return page == of && version == at; }
};

/// Who lies in which slot of which tier, in the order of operations. Drops are not told: a slot
/// keeps its contents until something else is written there.
class Ledger {
 public:
  explicit Ledger(std::span<const std::uint32_t> tier_slots) {
    for (const std::uint32_t n : tier_slots) tiers_.emplace_back(n);
  }
  SlotContents& at(TierId tier, SlotId slot) { return tiers_[tier][slot]; }
  bool has(TierId tier, SlotId slot) const {
    return tier < tiers_.size() && slot < tiers_[tier].size();
  }
  std::span<const SlotContents> tier(TierId tier) const { return tiers_[tier]; }
  std::size_t tiers() const { return tiers_.size(); }

 private:
  std::vector<std::vector<SlotContents>> tiers_;
};

}  // namespace lehr::runtime::cuda
