// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::runtime::cuda {

/// Launches are counted from 0: those below this number.
using Launches = std::uint64_t;

/// Which place in host memory a slot of the home tier really is. The host fills places (from a
/// file) and empties them (into one) while launches that read or write them are on their way or not
/// even handed over; so what comes into a slot gets a place that nobody uses, and the place before
/// waits until its last launch and its last transfer have ended. Not thread-safe.
class HomeSlots {
 public:
  /// `spare` places more than slots. Slots that the host never touches stay where they are.
  HomeSlots(std::uint32_t slots, std::uint32_t spare, bool waits_for_launches = true);

  std::uint32_t place(SlotId slot) const { return place_[slot]; }
  std::uint32_t places() const { return static_cast<std::uint32_t>(state_.size()); }

  /// The place is read or written by the launch that is listed now, number `listed`.
  void use(std::uint32_t place, Launches listed) { state_[place].last = listed + 1; }
  /// And by it, what is there from then on.
  void fill(std::uint32_t place, Launches listed) {
    state_[place].filled = listed + 1;
    use(place, listed);
  }
  /// Launches that must have ended before the contents are there.
  Launches filled(std::uint32_t place) const { return state_[place].filled; }

  /// A transfer of this process into or out of the place: until it ends, nobody else gets the
  /// place.
  void begin_transfer(std::uint32_t place) { ++state_[place].transfers; }
  void end_transfer(std::uint32_t place) { --state_[place].transfers; }
  bool in_transfer(std::uint32_t place) const { return state_[place].transfers > 0; }

  /// A free place, with nothing on its way there; none: see reclaim().
  std::optional<std::uint32_t> take();
  /// Not of any slot any more.
  void retire(std::uint32_t place) { retired_.push_back(place); }
  /// From the launch that is listed now, the slot lies in `place`, which was taken; the one before
  /// retires, and is nobody's before this launch was handed over and has ended.
  void rename(SlotId slot, std::uint32_t place, Launches listed);
  /// Places whose launches (`ended` of them have ended) and transfers are over are free again.
  void reclaim(Launches ended);
  std::size_t free() const { return free_.size(); }

  /// What was listed is handed over. Until then, rollback() gives slots the places back that they
  /// had at the last keep().
  void keep() { renamed_.clear(); }
  void rollback();

 private:
  struct State {
    Launches last = 0;  ///< launches that must have ended before others may have it
    Launches filled = 0;
    std::uint32_t transfers = 0;
  };
  bool waits_;
  std::vector<std::uint32_t> place_;  ///< by slot
  std::vector<State> state_;          ///< by place
  std::vector<std::uint32_t> free_, retired_;
  std::vector<std::pair<SlotId, std::uint32_t>> renamed_;  ///< and the place before
};

}  // namespace lehr::runtime::cuda
