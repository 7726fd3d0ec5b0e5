// SPDX-License-Identifier: Apache-2.0
#include "transfer/topology.hpp"

#include <memory>

#include <hwloc.h>

namespace lehr::transfer {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using TopologyHandle = std::unique_ptr<hwloc_topology, Destroy>;

TopologyHandle load(bool with_devices) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  TopologyHandle handle(raw);
  if (with_devices) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) return nullptr;
  return handle;
}

}  // namespace

Result<Topology> Topology::detect() {
  const TopologyHandle topology = load(false);
  if (topology == nullptr) return unsupported("hwloc cannot read this machine's topology");
  Topology result;
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    const int cpus = node->cpuset != nullptr ? hwloc_bitmap_weight(node->cpuset) : 0;
    result.nodes.push_back({node->os_index, node->attr->numanode.local_memory,
                            cpus > 0 ? static_cast<unsigned>(cpus) : 0});
  }
  if (result.nodes.empty()) return unsupported("hwloc reports no NUMA node");
  return result;
}

std::optional<unsigned> numa_node_of_pci(unsigned domain, unsigned bus, unsigned device,
                                         unsigned function) {
  const TopologyHandle topology = load(true);
  if (topology == nullptr) return std::nullopt;
  hwloc_obj_t pci = hwloc_get_pcidev_by_busid(topology.get(), domain, bus, device, function);
  if (pci == nullptr) return std::nullopt;
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology.get(), pci);
  if (near == nullptr || near->nodeset == nullptr) return std::nullopt;
  const int first = hwloc_bitmap_first(near->nodeset);
  if (first < 0) return std::nullopt;
  return static_cast<unsigned>(first);
}

}  // namespace lehr::transfer
