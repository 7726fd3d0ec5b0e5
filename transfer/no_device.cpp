// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA says of devices.
#include "transfer/block_lanes.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

Error without_cuda() { return unsupported("this build has no CUDA (configure with LEHR_CUDA=ON)"); }

}  // namespace

std::vector<DeviceInfo> devices() { return {}; }
Result<std::vector<double>> read_passes(std::int32_t /*device*/, const std::byte* /*memory*/,
                                        Bytes /*bytes*/, std::uint32_t /*ctas*/,
                                        std::uint32_t /*passes*/) {
  return without_cuda();
}
Result<double> graph_move_seconds(std::int32_t /*device*/, const std::byte* /*from*/,
                                  std::byte* /*to*/, std::uint32_t /*bytes*/) {
  return without_cuda();
}
Result<WindowGain> window_gain(std::int32_t /*device*/, const std::byte* /*memory*/, Bytes /*hot*/,
                               Bytes /*cold*/) {
  return without_cuda();
}
Status fetch_from_device(std::byte* /*to*/, const std::byte* /*from*/, Bytes /*bytes*/) {
  return without_cuda();
}
Status peer_access(std::int32_t /*reader*/, std::int32_t /*owner*/) { return without_cuda(); }

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::create(const DeviceMemoryConfig& /*config*/) {
  return without_cuda();
}
Result<std::shared_ptr<PinnedMemory>> PinnedMemory::create(const PinnedMemoryConfig& /*config*/) {
  return without_cuda();
}
MemoryRegion region_of(const std::shared_ptr<DeviceMemory>& /*memory*/) { return {}; }
MemoryRegion region_of(const std::shared_ptr<PinnedMemory>& /*memory*/) { return {}; }
Result<std::unique_ptr<Mover>> make_device_mover(const DeviceMoverConfig& /*config*/) {
  return without_cuda();
}

Result<std::unique_ptr<BlockLanes>> make_block_lanes(const BlockLanesConfig& /*config*/) {
  return without_cuda();
}

struct EventLeases::State {};
EventLeases::EventLeases() = default;
EventLeases::~EventLeases() = default;
Status EventLeases::after(void* /*stream*/, std::vector<Lease> /*leases*/) {
  return without_cuda();
}
std::size_t EventLeases::poll() { return 0; }

}  // namespace lehr::transfer
