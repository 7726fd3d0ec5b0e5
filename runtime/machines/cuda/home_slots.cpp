// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/home_slots.hpp"

#include <algorithm>
#include <numeric>

namespace lehr::runtime::cuda {

HomeSlots::HomeSlots(std::uint32_t slots, std::uint32_t spare, bool waits_for_launches)
    : waits_(waits_for_launches), place_(slots), state_(std::size_t{slots} + spare), free_(spare) {
  std::iota(place_.begin(), place_.end(), 0U);
  // The last ones first: the lowest are taken first.
  for (std::uint32_t i = 0; i < spare; ++i) free_[i] = slots + spare - 1 - i;
}

std::optional<std::uint32_t> HomeSlots::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t place = free_.back();
  free_.pop_back();
  state_[place] = {};
  return place;
}

void HomeSlots::rename(SlotId slot, std::uint32_t place, Launches listed) {
  renamed_.emplace_back(slot, place_[slot]);
  use(place_[slot], listed);
  retire(place_[slot]);
  place_[slot] = place;
}

void HomeSlots::reclaim(Launches ended) {
  std::erase_if(retired_, [&](std::uint32_t place) {
    const State& state = state_[place];
    if (state.transfers > 0 || (waits_ && state.last > ended)) return false;
    free_.push_back(place);
    return true;
  });
}

void HomeSlots::rollback() {
  for (auto at = renamed_.rbegin(); at != renamed_.rend(); ++at) {
    const auto [slot, before] = *at;
    std::erase(retired_, before);
    retire(place_[slot]);
    place_[slot] = before;
  }
  renamed_.clear();
}

}  // namespace lehr::runtime::cuda
