// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lehr::transfer {

/// XXH3-64: finds accidents (lost, torn, foreign or flipped bytes), not forgeries.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace lehr::transfer
