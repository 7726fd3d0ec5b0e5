// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace lehr {

/// A page of one layer and one KV group. Dense: an index into the columns of the page table.
using PageId = std::uint32_t;
inline constexpr PageId kNoPage = std::numeric_limits<PageId>::max();

/// A page-sized place in a tier's arena.
using SlotId = std::uint32_t;
inline constexpr SlotId kNoSlot = std::numeric_limits<SlotId>::max();

/// Index of a tier, or of a link, in the platform profile. Tier 0 is the one attention reads
/// fastest (HBM).
using TierId = std::uint8_t;
using LinkId = std::uint8_t;
inline constexpr TierId kHbm = 0;
inline constexpr std::uint8_t kMaxTiers = 8;

/// A decode step of the whole batch, and a moment within it: tick = step * layers + layer.
using Step = std::uint32_t;
using Tick = std::uint32_t;
inline constexpr Tick kNever = std::numeric_limits<Tick>::max();

/// Recorded share of softmax mass: code c means 2^(-c/8), 255 means none (DESIGN §6).
using MassCode = std::uint8_t;
inline constexpr MassCode kNoMass = 255;

}  // namespace lehr
