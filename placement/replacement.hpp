// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/ids.hpp"

namespace lehr::placement {

class Policy;

/// A replacement order over equally large objects (pages, or blocks of a request trace): the part
/// of a policy that knows nothing of steps, layers or links. Not thread-safe; deterministic.
///
/// The owner holds the resident set and calls, for each visit in order: hit() if resident;
/// otherwise victim() while there is no room, evict() for what it names, then insert() unless it
/// bypasses.
class Replacement {
 public:
  virtual ~Replacement() = default;

  /// Empty, for `capacity` resident objects. Ids may be any below `id_bound`; larger ids later are
  /// allowed and grow the columns.
  virtual void reset(std::uint32_t capacity, std::uint32_t id_bound) = 0;

  /// Visits to resident objects. `next_use` is aligned, or empty without knowledge of the future.
  /// Between two calls guards may rise but not fall: a search for a victim may go on where the last
  /// one ended.
  virtual void hit(std::span<const PageId> ids, std::span<const Tick> next_use) = 0;

  /// What leaves to make room for `incoming`: a resident object with guard 0; `incoming` itself to
  /// bypass it; kNoPage if nothing is evictable. Without an `incoming` (kNoPage) room is needed in
  /// any case. Changes no residency. If insert() does not follow, the visit counts as bypassed.
  /// `guard` covers every resident id; ids past its end have guard 0.
  virtual PageId victim(PageId incoming, Tick next_use, std::span<const std::uint16_t> guard) = 0;

  /// A resident object leaves by this order's own choice: it may be remembered as a ghost.
  virtual void evict(PageId id) = 0;

  /// An object becomes resident, there is room.
  virtual void insert(PageId id, Tick next_use) = 0;

  /// An object ceases to exist, resident or not: forget it.
  virtual void erase(PageId id) = 0;
};

/// Fill on read under a replacement order: every missed page is installed unless the order bypasses
/// it or finds no victim.
std::unique_ptr<Policy> fill_on_read(std::unique_ptr<Replacement> order);

/// The same, but a miss is read in place and then promoted by a second, urgent crossing.
std::unique_ptr<Policy> promote_after_read(std::unique_ptr<Replacement> order);

}  // namespace lehr::placement
