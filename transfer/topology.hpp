// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::transfer {

struct NumaNode {
  unsigned id = 0;  ///< as the operating system numbers it
  Bytes memory_bytes = 0;
  unsigned cpus = 0;
};

/// What the machine's memory looks like from where this process runs.
struct Topology {
  std::vector<NumaNode> nodes;  ///< at least one

  static Result<Topology> detect();
};

/// The NUMA node nearest to a PCI device (a GPU, an NVMe drive); nothing where the machine does not
/// say.
std::optional<unsigned> numa_node_of_pci(unsigned domain, unsigned bus, unsigned device,
                                         unsigned function);

}  // namespace lehr::transfer
