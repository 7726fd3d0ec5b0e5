// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transfer/device.hpp"
#include "transfer/engine.hpp"
#include "transfer/page_file.hpp"

namespace lehr::transfer {

/// Another GPU's HBM as a tier: a donor's spare memory.
struct DonorConfig {
  std::string name = "peer";
  std::int32_t device = 1;
  SlotId pages = 0;
};

/// What a platform profile says of the movers of an engine's links; empty: one fixed mover a link.
struct DeviceMovers {
  std::vector<MoverCurve> host_in, host_out;  ///< host to hbm, and back
  std::vector<MoverCurve> peer_in, peer_out;  ///< a donor to hbm, and back
};

/// An engine of one serving device. Tiers in this order: `hbm`, the donors, `host`, the files.
/// Links: between all memory tiers, both ways, each with movers of its own on the serving device;
/// between host and each file, both ways; with `relay_pages` also between hbm and each file.
struct DeviceEngineConfig {
  Bytes page_bytes = 0;
  Bytes alignment = 4096;  ///< of slots; less than 4096 only without files
  std::int32_t device = 0;
  SlotId hbm_pages = 0;
  SlotId hbm_reserve = 0;  ///< slots that hbm may grow to; 0: hbm_pages
  std::vector<DonorConfig> donors;
  SlotId host_pages = 0;
  std::optional<unsigned> numa_node;  ///< of host memory; unset: nearest to the device
  unsigned touch_threads = 8;
  std::vector<PageFileConfig> files;  ///< page_bytes is filled in
  DeviceMovers measured;
  SlotId relay_pages = 0;   ///< of a pinned ring between files and hbm; 0: no such links
  bool try_cufile = false;  ///< files straight to hbm by cuFile, where it is installed
  DeviceCopy host_copy = DeviceCopy::kRing;
  DeviceCopy peer_copy = DeviceCopy::kRing;
  kernels::MoveRing host_ring{4, 4, 32768, 2, false, false};
  kernels::MoveRing peer_ring{32, 24, 8192, 4, false, false};
  std::uint32_t peer_read_ctas = 16;  ///< reading a peer needs fewer than writing to it
  LinkLimits host_limits{50e9, 1e-3, 1024, 0, 0};
  LinkLimits peer_limits{350e9, 1e-3, 8192, 0, 0};
  LinkLimits file_limits{10e9, 1e-2, 128, 0, 0};
  FaultPlan faults;
  const Clock* clock = nullptr;
  std::uint32_t max_jobs = 1U << 17;
};

/// The engine and what its tiers stand on.
struct DeviceEngine {
  std::unique_ptr<TransferEngine> engine;
  std::shared_ptr<DeviceMemory> hbm;
  std::vector<std::shared_ptr<DeviceMemory>> donors;
  std::shared_ptr<PinnedMemory> host;
  TierId host_tier = 0;

  /// Puts into circulation the host slots that became ready since the last call; true when all are.
  bool serve_ready_host();
  /// Grows or shrinks hbm (tier 0) or a donor to `pages`. Shrinking is refused with kLeased while
  /// slots past it are in use: see evacuate().
  Status resize(TierId tier, SlotId pages);
};

/// Serving starts at once: host slots come into circulation while the rest is still being
/// registered. A donor that cannot be had (no peer access, no memory) is left out, with a notice,
/// and its tier has no slots: the pages meant for it stay on host.
Result<DeviceEngine> make_device_engine(DeviceEngineConfig config);

/// What became of an evacuation. A page that `to` has no room for, that somebody fills just now,
/// or that the bound did not leave time for, stays where it is and readable.
struct Evacuation {
  std::vector<MoveResult> moved;   ///< for the page table to follow; sources are released
  std::vector<MoveResult> others;  ///< moves of the caller that finished meanwhile
  std::array<std::uint64_t, kReasons> refused{};  ///< moves that were refused, by Reason
  SlotId left = 0;  ///< slots from `first_slot` on that are still in use
  bool complete() const { return left == 0; }
};
/// Takes `from`'s slots from `first_slot` on out of circulation and moves the pages in them to
/// `to`: what a donor asks for before it takes its memory back with resize().
Evacuation evacuate(TransferEngine& engine, TierId from, SlotId first_slot, TierId to,
                    std::int64_t bound_ns);

}  // namespace lehr::transfer
