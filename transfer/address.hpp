// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/ids.hpp"
#include "kernels/base/units.hpp"

namespace lehr::transfer {

/// What kind of place an address is in. A peer GPU's memory is device memory of another unit.
enum class Space : std::uint8_t { kHostMemory = 0, kDeviceMemory = 1, kFile = 2 };
inline constexpr std::size_t kSpaces = 3;

/// A place that bytes can be moved from or to, as data: movers look at nothing else.
struct Address {
  Space space = Space::kHostMemory;
  std::int32_t unit = -1;        ///< device ordinal, or file descriptor
  std::byte* pointer = nullptr;  ///< memory spaces
  std::uint64_t offset = 0;      ///< files
};

/// Why bytes cross a link; counters are kept for each.
enum class Cause : std::uint8_t {
  kDemandLoad = 0,  ///< a step is waiting for it
  kPrefetch = 1,
  kPromotion = 2,
  kWriteBack = 3,
  kDemotion = 4,
  kOther = 5,
};
inline constexpr std::size_t kCauses = 6;

/// Urgent work overtakes background work that is still queued.
enum class Urgency : std::uint8_t { kUrgent = 0, kBackground = 1 };

/// A slot of a tier.
struct Place {
  TierId tier = 0;
  SlotId slot = kNoSlot;
  friend bool operator==(const Place&, const Place&) = default;
};

}  // namespace lehr::transfer
