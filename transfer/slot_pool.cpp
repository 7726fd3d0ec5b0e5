// SPDX-License-Identifier: Apache-2.0
#include "transfer/slot_pool.hpp"

#include <algorithm>
#include <string>

#include "kernels/base/check.hpp"

namespace lehr::transfer {

bool Lease::ready() const { return pool_ != nullptr && pool_->ready(slot_, mode_, turn_); }

void Lease::end() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->end(slot_, mode_, turn_);
}

Result<std::unique_ptr<SlotPool>> SlotPool::create(const SlotPoolConfig& config) {
  if (config.slots == 0 || config.slots >= kNoSlot) {
    return invalid("a tier needs 1 to 4294967294 slots, not " + std::to_string(config.slots),
                   Reason::kOutOfRange);
  }
  if (config.slots_per_extent == 0) return invalid("an extent needs at least one slot");
  LEHR_ASSIGN(EventFd event, EventFd::create());
  return std::unique_ptr<SlotPool>(new SlotPool(config, std::move(event)));
}

SlotPool::SlotPool(const SlotPoolConfig& config, EventFd event)
    : guard_(config.guard_leases),
      event_(std::move(event)),
      free_(config.slots, config.slots_per_extent),
      slots_(config.slots),
      limit_(config.slots) {}

SlotPool::~SlotPool() { LEHR_CHECK(1, leases_ == 0); }

Status SlotPool::allocate(std::span<SlotId> out) {
  const std::lock_guard lock(mutex_);
  return allocate_locked(out, false);
}

Status SlotPool::allocate_behind_readers(std::span<SlotId> out) {
  const std::lock_guard lock(mutex_);
  return allocate_locked(out, true);
}

Status SlotPool::allocate_locked(std::span<SlotId> out, bool behind_readers) {
  const std::size_t free = free_.free_slots();
  const std::size_t reach = free + (behind_readers ? retiring_count_ : 0);
  if (out.size() > reach) {
    const SlotId used = held_ + retiring_count_;
    const bool all_leased = used != 0 && leased_ == used;
    return refused(all_leased ? Reason::kNoEvictable : Reason::kOverBudget,
                   std::to_string(out.size()) + " slots asked for, " + std::to_string(reach) +
                       " of " + std::to_string(limit_) + " free, " + std::to_string(leased_) +
                       " leased");
  }
  const auto fresh = out.first(std::min(out.size(), free));
  free_.take(fresh);
  for (const SlotId slot : fresh) slots_[slot].state = State::kHeld;
  for (SlotId& slot : out.subspan(fresh.size())) {
    State state = State::kFree;
    do {
      slot = retiring_.front();
      retiring_.pop_front();
      slots_[slot].listed = false;
      state = std::exchange(slots_[slot].state, State::kHeld);
      if (state != State::kRetiring) slots_[slot].state = state;
    } while (state != State::kRetiring);
    --retiring_count_;
  }
  held_ += static_cast<SlotId>(out.size());
  return {};
}

Status SlotPool::claim(SlotId slot) {
  const std::lock_guard lock(mutex_);
  if (!free_.take_exactly(slot)) {
    return invalid("slot " + std::to_string(slot) + " is not free", Reason::kOutOfRange);
  }
  slots_[slot].state = State::kHeld;
  ++held_;
  return {};
}

Status SlotPool::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  if (slot >= slots_.size() || slots_[slot].state != State::kHeld) {
    return invalid("slot " + std::to_string(slot) + " is not allocated", Reason::kOutOfRange);
  }
  Slot& s = slots_[slot];
  --held_;
  if (guard_ && s.leases() != 0) {
    if (slot >= limit_) {
      s.state = State::kLeaving;
    } else {
      retire(slot);
    }
  } else {
    vacate(slot);
  }
  return {};
}

/// Released under a lease: the slot may be handed out again behind its readers.
void SlotPool::retire(SlotId slot) {
  Slot& s = slots_[slot];
  s.state = State::kRetiring;
  ++retiring_count_;
  // Entries of slots that became free by themselves are dropped when they are the majority.
  if (retiring_.size() > 2 * std::size_t{retiring_count_} + 64) {
    std::erase_if(retiring_, [&](SlotId r) {
      slots_[r].listed = slots_[r].state == State::kRetiring && r != slot;
      return !slots_[r].listed;
    });
  }
  // Still listed from an earlier retirement: a second entry would hand the slot out twice.
  if (!s.listed) retiring_.push_back(slot);
  s.listed = true;
}

/// Nobody holds or leases the slot any more.
void SlotPool::vacate(SlotId slot) {
  if (slot >= limit_) {
    slots_[slot].state = State::kWithheld;
  } else {
    slots_[slot].state = State::kFree;
    free_.give_back(slot);
  }
}

void SlotPool::set_limit(SlotId limit) {
  const std::lock_guard lock(mutex_);
  limit = std::min(limit, free_.capacity());
  const SlotId before = std::exchange(limit_, limit);
  for (SlotId slot = limit; slot < before; ++slot) {
    Slot& s = slots_[slot];
    if (s.state == State::kFree) {
      free_.take_exactly(slot);
      s.state = State::kWithheld;
    } else if (s.state == State::kRetiring) {
      s.state = State::kLeaving;
      --retiring_count_;
    }
  }
  for (SlotId slot = before; slot < limit; ++slot) {
    if (slots_[slot].state == State::kWithheld) vacate(slot);
    if (slots_[slot].state == State::kLeaving) retire(slot);
  }
}

SlotId SlotPool::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

SlotId SlotPool::in_use_past_limit() const {
  const std::lock_guard lock(mutex_);
  return static_cast<SlotId>(
      std::count_if(slots_.begin() + limit_, slots_.end(),
                    [](const Slot& s) { return s.state != State::kWithheld || s.leases() != 0; }));
}

Result<Lease> SlotPool::lease(SlotId slot, LeaseMode mode) {
  const std::lock_guard lock(mutex_);
  return lease_locked(slot, mode);
}

Result<Lease> SlotPool::lease_now(SlotId slot, LeaseMode mode) {
  const std::lock_guard lock(mutex_);
  if (guard_ && slot < slots_.size() && slots_[slot].state == State::kHeld &&
      (slots_[slot].writer || (mode == LeaseMode::kWrite && slots_[slot].leases() != 0))) {
    return refused(Reason::kPending, "slot " + std::to_string(slot) + " is leased");
  }
  return lease_locked(slot, mode);
}

Result<Lease> SlotPool::lease_locked(SlotId slot, LeaseMode mode) {
  if (slot >= slots_.size() || slots_[slot].state != State::kHeld) {
    return invalid("slot " + std::to_string(slot) + " is not allocated", Reason::kOutOfRange);
  }
  Slot& s = slots_[slot];
  const bool first = s.leases() == 0;
  std::uint32_t turn = s.turn;
  if (mode == LeaseMode::kWrite) {
    if (s.writer) {
      return refused(Reason::kLeased, "slot " + std::to_string(slot) + " already has a writer");
    }
    s.writer = true;
  } else if (s.writer) {
    ++s.later;
    ++turn;
  } else {
    ++s.readers;
  }
  if (first) ++leased_;
  ++leases_;
  return Lease(this, slot, mode, turn);
}

bool SlotPool::ready(SlotId slot, LeaseMode mode, std::uint32_t turn) const {
  if (!guard_) return true;
  const std::lock_guard lock(mutex_);
  const Slot& s = slots_[slot];
  return mode == LeaseMode::kRead ? s.turn >= turn : s.readers == 0;
}

void SlotPool::end(SlotId slot, LeaseMode mode, std::uint32_t turn) {
  const std::lock_guard lock(mutex_);
  Slot& s = slots_[slot];
  if (mode == LeaseMode::kWrite) {
    s.writer = false;
    ++s.turn;
    s.readers += std::exchange(s.later, 0U);
  } else if (turn > s.turn) {
    --s.later;
  } else {
    --s.readers;
  }
  --leases_;
  const bool quiet = s.leases() == 0;
  if (quiet) {
    --leased_;
    if (s.state == State::kRetiring) --retiring_count_;
    if (s.state == State::kRetiring || s.state == State::kLeaving) vacate(slot);
  }
  if (quiet || mode == LeaseMode::kWrite || (s.writer && s.readers == 0)) {
    if (!quiet && !std::exchange(s.turned, true)) turned_.push_back(slot);
    if (!event_pending_.exchange(true)) event_.signal();
  }
}

bool SlotPool::take_event() {
  if (!event_pending_.load()) return false;
  // In this order a lease that ends in between is seen now, or signals again.
  event_.clear();
  return event_pending_.exchange(false);
}

void SlotPool::take_turned(std::vector<SlotId>& out) {
  const std::lock_guard lock(mutex_);
  for (const SlotId slot : turned_) slots_[slot].turned = false;
  out.insert(out.end(), turned_.begin(), turned_.end());
  turned_.clear();
}

SlotUsage SlotPool::usage() const {
  const std::lock_guard lock(mutex_);
  const SlotId in_circulation = free_.free_slots() + held_ + retiring_count_;
  return {free_.capacity(),
          free_.free_slots(),
          held_,
          retiring_count_,
          leased_,
          leases_,
          free_.capacity() - in_circulation};
}

std::uint32_t SlotPool::leases_on(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return slot < slots_.size() ? slots_[slot].leases() : 0;
}

bool SlotPool::is_held(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return slot < slots_.size() && slots_[slot].state == State::kHeld;
}

Status SlotPool::validate() const {
  const std::lock_guard lock(mutex_);
  LEHR_TRY(free_.validate());
  SlotId free = 0, held = 0, retiring = 0, leased = 0;
  std::uint64_t leases = 0;
  for (const Slot& s : slots_) {
    free += s.state == State::kFree;
    held += s.state == State::kHeld;
    retiring += s.state == State::kRetiring;
    leased += s.leases() != 0;
    leases += s.leases();
    if (s.later != 0 && !s.writer) return internal_error("readers wait for no writer");
    if (guard_ && (s.state == State::kFree || s.state == State::kWithheld) && s.leases() != 0) {
      return internal_error("a free slot is leased");
    }
    const bool below = &s < slots_.data() + limit_;
    if (below ? s.state == State::kLeaving || s.state == State::kWithheld
              : s.state == State::kFree || s.state == State::kRetiring) {
      return internal_error("a slot is in circulation on the wrong side of the limit");
    }
  }
  if (free != free_.free_slots() || held != held_ || retiring != retiring_count_ ||
      leased != leased_ || leases != leases_) {
    return internal_error("slot pool: counts do not add up");
  }
  return {};
}

}  // namespace lehr::transfer
