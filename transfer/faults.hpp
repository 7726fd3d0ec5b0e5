// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/result.hpp"

namespace lehr::transfer {

enum class FaultOp : std::uint8_t { kCopy = 0, kRead = 1, kWrite = 2 };
inline constexpr std::size_t kFaultOps = 3;

enum class FaultKind : std::uint8_t {
  kIoError,   ///< the job fails with EIO, no byte moved
  kNoSpace,   ///< the job fails with ENOSPC, no byte moved
  kTruncate,  ///< the source ended after half of the bytes
  kShort,     ///< the first request moves `amount` bytes only; the rest must be asked for again
  kSlow,      ///< the completion is held back for `amount` microseconds
  kReorder,  ///< the completion is held back until a later one was handed out, or nothing else runs
  kBitFlip,  ///< one bit of the destination is wrong
};

/// Guards that a control run may switch off, to show that a test fails without them.
enum class Guard : std::uint8_t { kLeases, kChecksum, kGeneration, kReservation, kOrder };

struct Fault {
  FaultKind kind = FaultKind::kIoError;
  FaultOp op = FaultOp::kCopy;
  std::uint64_t nth = 1;    ///< the first operation hit, counted from 1 for each kind of operation
  std::uint64_t every = 0;  ///< then each `every`-th after it; 0: only that one
  std::uint64_t amount = 0;
};

/// What goes wrong, as configuration: "read#3=eio; write#1/4=enospc; copy#2=slow:500;
/// off=checksum".
struct FaultPlan {
  std::vector<Fault> faults;
  std::vector<Guard> guards_off;

  bool guards(Guard guard) const {
    for (const Guard off : guards_off) {
      if (off == guard) return false;
    }
    return true;
  }
  static Result<FaultPlan> parse(std::string_view text);
};

/// Counts operations and says which of them a plan hits. Thread safe.
class FaultInjector {
 public:
  explicit FaultInjector(FaultPlan plan) : plan_(std::move(plan)) {}
  std::optional<Fault> next(FaultOp op);
  const FaultPlan& plan() const { return plan_; }
  std::uint64_t injected() const { return injected_.load(std::memory_order_relaxed); }

 private:
  FaultPlan plan_;
  std::atomic<std::uint64_t> seen_[kFaultOps]{};
  std::atomic<std::uint64_t> injected_{0};
};

}  // namespace lehr::transfer
