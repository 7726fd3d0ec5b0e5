// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transfer/arena.hpp"
#include "transfer/engine.hpp"
#include "transfer/page_file.hpp"

namespace lehr::transfer {

/// A host-memory tier: plain DRAM, or memory that stands for a device's.
struct HostTierConfig {
  std::string name;
  SlotId pages = 0;
  std::optional<unsigned> numa_node;
  MemoryRegion
      region{};  ///< of the caller, at least Arena::bytes_for() of this tier; none: its own
};

/// An engine of host memory and files only. Its tiers are the memory tiers in order, then the
/// files.
struct HostEngineConfig {
  Bytes page_bytes = 0;
  std::vector<HostTierConfig> memory;
  std::vector<PageFileConfig> files;  ///< page_bytes is filled in
  /// Empty: links between all neighbours in tier order, both ways, with `default_limits`.
  std::vector<LinkConfig> links;
  LinkLimits default_limits;
  /// What a profile says of movers: each batch goes with the one that promises the least time. Of
  /// `host_copy`, `file_uring` and `file_pread`; others, and ways without a link, are passed over.
  std::vector<MeasuredWay> measured;
  std::uint32_t copy_threads = 1;
  std::uint32_t touch_threads = 2;
  std::uint32_t file_depth = 64;
  bool use_uring = true;
  FaultPlan faults;
  const Clock* clock = nullptr;
  std::uint32_t max_jobs = 1U << 16;
};

/// What could not be had (NUMA binding, O_DIRECT, io_uring, registered buffers) is in
/// stats().notices.
Result<std::unique_ptr<TransferEngine>> make_host_engine(HostEngineConfig config);

/// Takes every slot of a tier, for whoever hands them out itself, from 0 on.
Status take_all_slots(TransferEngine& engine, TierId tier);

/// `wanted`, or where that is empty the folder for temporary files.
Result<std::string> scratch_folder(const std::string& wanted);

/// What was wrong with a move that did not end well.
const char* what_failed(const MoveResult& result);

}  // namespace lehr::transfer
