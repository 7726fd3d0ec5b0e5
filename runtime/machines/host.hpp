// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "placement/model.hpp"
#include "runtime/machine.hpp"

namespace lehr::runtime {

struct HostMachineOptions {
  placement::Platform platform;           ///< names and order of the tiers
  std::vector<std::uint32_t> tier_pages;  ///< as the runtime has them
  Bytes page_bytes = 0;
  std::string nvme_directory;  ///< for tiers that cannot be read in place; empty: the system's
                               ///< temporary one
  bool use_uring = true;
};

/// Real bytes: an arena standing for HBM, NUMA-bound host memory, an NVMe file through io_uring
/// with O_DIRECT (notes() says what was not to be had). Contents are made from page and version and
/// compared in full at every read, so that a lost, stale or foreign page fails the layer with
/// kCorrupt.
Result<std::unique_ptr<Machine>> make_host_machine(const HostMachineOptions& options);

}  // namespace lehr::runtime
