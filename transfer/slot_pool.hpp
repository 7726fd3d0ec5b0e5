// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "transfer/extents.hpp"
#include "transfer/lease.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {

struct SlotUsage {
  SlotId capacity = 0;
  SlotId free = 0;
  SlotId held = 0;      ///< allocated
  SlotId retiring = 0;  ///< released, but a lease still holds them
  SlotId leased = 0;    ///< with at least one lease
  std::uint64_t leases = 0;
  SlotId withheld = 0;  ///< at or past the limit, and not held
};

struct SlotPoolConfig {
  SlotId slots = 0;
  std::uint32_t slots_per_extent = 1;
  bool guard_leases = true;  ///< off only in control runs, which must then fail
};

/// The slots of one tier: which are taken, and who holds a lease on them. A slot that is released
/// while leased retires: it counts as used and becomes free when its last lease ends. Refusals
/// leave the state unchanged. Thread safe; destroying a pool with live leases is a broken
/// invariant.
class SlotPool {
 public:
  static Result<std::unique_ptr<SlotPool>> create(const SlotPoolConfig& config);
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  ~SlotPool();

  /// Takes out.size() free slots or none. Refused with kNoEvictable when every used slot is leased,
  /// else with kOverBudget (releasing something would help).
  Status allocate(std::span<SlotId> out);
  /// As allocate(), but falls back to retiring slots: their last readers are still at work, so the
  /// new holder must take a write lease and wait until it is ready.
  Status allocate_behind_readers(std::span<SlotId> out);
  /// Takes one certain free slot, as a restart does.
  Status claim(SlotId slot);
  Status release(SlotId slot);

  /// Slots from `limit` on are out of circulation: free ones at once, held ones when they are
  /// released and their last lease ends. Memory that grows or shrinks behind a fixed base moves its
  /// limit. O(slots whose place in circulation changes).
  void set_limit(SlotId limit);
  SlotId limit() const;
  /// Slots at or past the limit that are still held, or leased after their release.
  SlotId in_use_past_limit() const;

  /// A lease in turn; refused with kLeased where another writer is already waiting or writing.
  Result<Lease> lease(SlotId slot, LeaseMode mode);
  /// A lease whose turn is now, or a refusal with kPending.
  Result<Lease> lease_now(SlotId slot, LeaseMode mode);

  SlotUsage usage() const;
  std::uint32_t leases_on(SlotId slot) const;
  bool is_held(SlotId slot) const;
  Status validate() const;

  /// Signalled whenever the end of a lease gives someone else a turn or frees a slot.
  int event_fd() const { return event_.get(); }
  /// Whether that happened since the last call; clears the event.
  bool take_event();
  /// Appends the slots on which somebody got a turn since the last call.
  void take_turned(std::vector<SlotId>& out);

 private:
  friend class Lease;
  enum class State : std::uint8_t { kFree, kHeld, kRetiring, kLeaving, kWithheld };
  struct Slot {
    std::uint32_t readers = 0;  ///< whose turn it is, or who came before the writer
    std::uint32_t later = 0;    ///< readers that wait for the writer
    std::uint32_t turn = 0;     ///< counts finished writers
    bool writer = false;
    bool listed = false;  ///< has an entry in retiring_
    bool turned = false;  ///< has an entry in turned_
    State state = State::kFree;
    std::uint32_t leases() const { return readers + later + (writer ? 1U : 0U); }
  };

  SlotPool(const SlotPoolConfig& config, EventFd event);
  Status allocate_locked(std::span<SlotId> out, bool behind_readers);
  Result<Lease> lease_locked(SlotId slot, LeaseMode mode);
  bool ready(SlotId slot, LeaseMode mode, std::uint32_t turn) const;
  void end(SlotId slot, LeaseMode mode, std::uint32_t turn);
  void retire(SlotId slot);
  void vacate(SlotId slot);

  const bool guard_;
  EventFd event_;
  std::atomic<bool> event_pending_{false};
  mutable std::mutex mutex_;
  ExtentAllocator free_;
  std::vector<Slot> slots_;
  std::deque<SlotId> retiring_;  ///< in order of release; entries whose slot moved on are skipped
  std::vector<SlotId> turned_;
  SlotId held_ = 0, retiring_count_ = 0, leased_ = 0;
  std::uint64_t leases_ = 0;
  SlotId limit_;
};

}  // namespace lehr::transfer
