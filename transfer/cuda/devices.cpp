// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"
#include "transfer/topology.hpp"

namespace lehr::transfer {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, name, device) != cudaSuccess) (void)cudaGetLastError();
  return value;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// The driver's own version where the kernel module tells it, else the CUDA level it offers.
std::string driver_version() {
  std::string text;
  if (std::FILE* file = std::fopen("/sys/module/nvidia/version", "r"); file != nullptr) {
    char line[64] = {};
    if (std::fgets(line, sizeof line, file) != nullptr) text = line;
    std::fclose(file);
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  }
  if (!text.empty()) return text;
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  return "CUDA " + version_text(version);
}

DeviceInfo describe(int device) {
  DeviceInfo info;
  info.ordinal = device;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    info.name = properties.name;
    info.memory_bytes = properties.totalGlobalMem;
    info.l2_bytes = static_cast<Bytes>(properties.l2CacheSize);
    info.l2_persisting_bytes = static_cast<Bytes>(properties.persistingL2CacheMaxSize);
    info.sms = static_cast<std::uint32_t>(properties.multiProcessorCount);
    info.copy_engines = static_cast<std::uint32_t>(properties.asyncEngineCount);
    info.bulk_copies = properties.major >= 9;
    info.numa_node = numa_node_of_pci(static_cast<unsigned>(properties.pciDomainID),
                                      static_cast<unsigned>(properties.pciBusID),
                                      static_cast<unsigned>(properties.pciDeviceID), 0);
  }
  // Two transfers a clock.
  info.hbm_peak = 2e3 * attribute(cudaDevAttrMemoryClockRate, device) *
                  attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8;
  const cuda::DeviceScope scope(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) info.free_bytes = free;
  int runtime = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  info.runtime = version_text(runtime);
  info.driver = driver_version();
  (void)cudaGetLastError();
  return info;
}

}  // namespace

std::vector<DeviceInfo> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  std::vector<DeviceInfo> all;
  for (int d = 0; d < count; ++d) all.push_back(describe(d));
  return all;
}

Status fetch_from_device(std::byte* to, const std::byte* from, Bytes bytes) {
  LEHR_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  return {};
}

Status peer_access(std::int32_t reader, std::int32_t owner) {
  if (reader == owner) return {};
  int can = 0;
  LEHR_CUDA_TRY(cudaDeviceCanAccessPeer(&can, reader, owner));
  if (can == 0) {
    return unsupported("device " + std::to_string(reader) +
                       " has no access to the memory of device " + std::to_string(owner));
  }
  return {};
}

}  // namespace lehr::transfer
