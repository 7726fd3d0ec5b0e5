// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/base/ids.hpp"

namespace lehr::transfer {

class SlotPool;

enum class LeaseMode : std::uint8_t { kRead, kWrite };

/// The promise that a slot keeps its contents (read), or is the holder's to fill (write), until the
/// lease ends. Readers and one writer of a slot take turns in the order in which they asked: a
/// lease may be held before its turn, and ready() says whether it has come. Move-only; ending it is
/// thread safe. The pool must outlive it.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        slot_(other.slot_),
        turn_(other.turn_),
        mode_(other.mode_) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      end();
      pool_ = std::exchange(other.pool_, nullptr);
      slot_ = other.slot_;
      turn_ = other.turn_;
      mode_ = other.mode_;
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { end(); }

  bool held() const { return pool_ != nullptr; }
  /// The slot may be read (a reader's turn) or filled (a writer's). False for an ended lease.
  bool ready() const;
  void end();

  SlotId slot() const { return slot_; }
  LeaseMode mode() const { return mode_; }

 private:
  friend class SlotPool;
  Lease(SlotPool* pool, SlotId slot, LeaseMode mode, std::uint32_t turn)
      : pool_(pool), slot_(slot), turn_(turn), mode_(mode) {}

  SlotPool* pool_ = nullptr;
  SlotId slot_ = kNoSlot;
  std::uint32_t turn_ = 0;
  LeaseMode mode_ = LeaseMode::kRead;
};

}  // namespace lehr::transfer
