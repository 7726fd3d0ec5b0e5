// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/result.hpp"

namespace lehr::transfer {

/// Room in a tier for groups of loads that help only when they are complete (a sequence's pages
/// before it can run). A group gets its whole need at once or nothing, so that two half-loaded
/// groups can never wait for each other. Groups are served in order of request, with two exceptions
/// that keep everything moving: one that already holds room is served first (it will free it), and
/// a smaller one may pass a head that does not fit, at most `max_passes` times. Pure bookkeeping in
/// slots; not thread safe.
class Reservations {
 public:
  using Group = std::uint64_t;

  struct Decision {
    enum Kind : std::uint8_t {
      kGrant,     ///< the group's whole need is reserved for it now
      kRollBack,  ///< nobody can go on: this group must give back what it holds and ask anew
    };
    Kind kind;
    Group group;
  };

  explicit Reservations(std::uint64_t capacity, std::uint32_t max_passes = 16,
                        bool whole_needs = true)
      : capacity_(capacity), max_passes_(max_passes), whole_needs_(whole_needs) {}

  /// Asks for `need` more slots for a group that holds `held`. Refused with kOverBudget when held
  /// and need pass the capacity: it could never be served.
  Status request(Group group, std::uint64_t need, std::uint64_t held);
  /// The next decision, or nothing when all requests must wait for finish().
  std::optional<Decision> next();
  /// The group returned all that it held or was granted; a waiting request of it is dropped.
  void finish(Group group);
  /// Slots outside any group come and go (an ordinary allocation).
  Status take(std::uint64_t slots);
  void give_back(std::uint64_t slots) { taken_ -= slots; }

  std::uint64_t free() const { return capacity_ - taken_ - held_; }
  std::uint64_t capacity() const { return capacity_; }
  std::size_t waiting() const;

 private:
  struct Entry {
    Group group;
    std::uint64_t held;
    std::uint64_t need;  ///< 0: served
    std::uint32_t passes;
  };
  Entry* find(Group group);
  Entry* choose();
  void grant(Entry& entry);

  std::uint64_t capacity_;
  std::uint32_t max_passes_;
  bool whole_needs_;  ///< off only in control runs: grants what is free, which strands groups
  std::uint64_t taken_ = 0;
  std::uint64_t held_ = 0;  ///< by all groups, grants included
  std::vector<Entry> entries_;
};

}  // namespace lehr::transfer
