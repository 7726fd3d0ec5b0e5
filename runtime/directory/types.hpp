// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/residency.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

// The placement level's words: blocks of an engine's pools, named by content keys, with copies on
// Lehr's own tiers below those pools.

namespace lehr::directory {

using NamespaceId = std::uint32_t;
using TenantId = std::uint32_t;
using ObjectId = std::uint32_t;
/// Ids with a generation (slot_map.hpp): one that was given back is known as stale.
using PoolId = std::uint64_t;
using LeaseId = std::uint64_t;
using JobId = std::uint64_t;
using ClaimId = std::uint64_t;
using TableId = std::uint64_t;
inline constexpr std::uint32_t kNone = 0xFFFFFFFFU;
inline constexpr std::uint32_t kNoBlock = 0xFFFFFFFFU;

/// Lehr's tiers below the pools, fastest first; kept as data, two of them today.
inline constexpr TierId kHostTier = 0;
inline constexpr TierId kNvmeTier = 1;
inline constexpr std::size_t kTiers = 2;
inline constexpr Residency kAllTiers = (1U << kTiers) - 1;

inline constexpr std::size_t kMostKeyBytes = 255;
inline constexpr std::uint8_t kPriorities = 3;
inline constexpr std::uint8_t kNormalPriority = 1;

/// Counters and gauges of stats.def.
struct Stats {
#define LEHR_STAT(name, unit, help) std::uint64_t name = 0;
#define LEHR_GAUGE(name, unit, help) std::uint64_t name = 0;
#include "runtime/directory/stats.def"
#undef LEHR_STAT
#undef LEHR_GAUGE
};

struct Event {
  enum class Kind : std::uint8_t { kStored = 1, kRemoved = 2, kWarning = 3 };
  Kind kind = Kind::kStored;
  TierId tier = 0;
  Reason reason = Reason::kNone;
  NamespaceId ns = kNone;
  std::string key;
  Bytes bytes = 0;
};

/// How one item of a job, or one key of a look-up, stands.
enum class ItemState : std::uint8_t {
  kMiss = 0,
  kHit = 1,      ///< look-up: a valid copy
  kPending = 2,  ///< another job is storing the key
  kMove = 3,     ///< the bytes are to be moved
  kPresent = 4,  ///< store: a valid copy is there already
  kSkipped = 5,  ///< store: named twice, or not to be stored
  kDone = 6,
  kFailed = 7,
  kCancelled = 8,
};

struct Evicted {
  NamespaceId ns = kNone;
  std::string key;
  TierId tier = 0;
  Reason reason = Reason::kNone;
};

}  // namespace lehr::directory
