// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "kernels/base/exchange.hpp"

namespace lehr::test {

/// Drops pages, the lowest numbers first, until `slots` are free or nothing more may leave: what a
/// test's policy owes, and what it wants besides.
inline void make_room(const LayerView& view, std::size_t slots, LayerPlan& plan) {
  std::size_t free = view.free_slots;
  for (PageId p = 0; p < view.pages.guard.size() && free < slots; ++p) {
    if (!view.pages.evictable(p)) continue;
    plan.drop.push_back(p);
    ++free;
  }
}

}  // namespace lehr::test
