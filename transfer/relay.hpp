// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transfer/arena.hpp"
#include "transfer/mover.hpp"

namespace lehr::transfer {

/// Two movers and the host memory between them.
struct RelayConfig {
  MemoryRegion ring;            ///< pinned where `copy` needs it so; cut into slots
  Bytes slot_bytes = 0;         ///< largest job
  std::unique_ptr<Mover> file;  ///< between files and the ring
  std::unique_ptr<Mover> copy;  ///< between the ring and `far`
  Space far = Space::kDeviceMemory;
  std::uint32_t queue = 4096;
};

/// A mover between files and memory that files do not reach: NVMe -> ring -> HBM, and back. The two
/// halves of different pages run at once. Contents are checked in the ring: what a file gives wrong
/// goes no further, and what it is given comes with its checksum. Writes take at most half of the
/// ring, so that loads always find room. A thread of its own drives both halves.
Result<std::unique_ptr<Mover>> make_relay(RelayConfig config);

}  // namespace lehr::transfer
