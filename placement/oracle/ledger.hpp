// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "placement/instance.hpp"

namespace lehr::placement {

/// Counts, free slots and times of all ticks of a plan in the making, and what one page more would
/// cost in each. Times are the model's.
class Ledger {
 public:
  explicit Ledger(const Instance& instance);

  /// `hbm` more pages read from or written to HBM in tick t, `crossings` more of the home link;
  /// either may be negative.
  void add(Tick t, int hbm, int crossings);
  /// Slots in [from, to) are taken, or given back if `slots` is negative.
  void hold(Tick from, Tick to, int slots) {
    for (Tick t = from; t < to; ++t) free_[t] -= slots;
  }
  bool full(Tick t) const { return free_[t] <= 0; }

  /// What the tick would take longer for a page read from HBM, read in place, or brought to HBM.
  Seconds read(Tick t) const { return read_[t]; }
  Seconds cross(Tick t) const { return cross_[t]; }
  Seconds bring(Tick t) const { return bring_[t]; }

  std::uint32_t hbm(Tick t) const { return static_cast<std::uint32_t>(hbm_[t]); }
  std::uint32_t crossings(Tick t) const { return static_cast<std::uint32_t>(crossings_[t]); }
  Seconds total(Tick from) const;
  Seconds time(Tick t) const { return time_[t]; }
  /// The same, with so many more pages and crossings.
  Seconds time_with(Tick t, int hbm, int crossings) {
    return time(t, hbm_[t] + hbm, crossings_[t] + crossings);
  }
  int free(Tick t) const { return free_[t]; }

 private:
  Seconds time(Tick t, int hbm, int crossings);
  Seconds hbm_time(double bytes) const;
  Seconds crossing_time(int crossings);

  const Instance* instance_;
  LinkId home_;
  double flat_;  ///< seconds a byte of HBM if that is the same for every size, else 0
  std::vector<std::uint8_t> plain_;  ///< nothing but crossings is on the links
  std::vector<Seconds> compute_;
  std::vector<int> hbm_, crossings_, free_;
  std::vector<Seconds> time_, read_, cross_, bring_;
  std::vector<Seconds> crossing_times_;  ///< by number, grown on demand
};

}  // namespace lehr::placement
