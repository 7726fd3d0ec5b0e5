// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lehr::transfer {

/// XXH3-64: finds accidents (lost, torn, foreign or flipped bytes), not forgeries.
std::uint64_t checksum(std::span<const std::byte> bytes);

/// The checksum of what was summed piece by piece, by several threads perhaps: that of its only
/// piece, or that of the list of their checksums in order.
std::uint64_t checksum_of_pieces(std::span<const std::uint64_t> pieces);

}  // namespace lehr::transfer
