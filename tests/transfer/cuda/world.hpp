// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_must.hpp"
#include "tests/transfer/cuda/pages.hpp"
#include "transfer/device.hpp"

/// What the GPU tests and the benchmark of the transfer layer share.
namespace lehr::transfer::test {

using lehr::test::must;

/// An array in pinned memory: both sides read it.
template <class T>
class Shared {
 public:
  explicit Shared(std::size_t size) : size_(size) {
    must(cudaHostAlloc(reinterpret_cast<void**>(&data_), size * sizeof(T), cudaHostAllocPortable),
         "pinned array");
    for (std::size_t i = 0; i < size; ++i) data_[i] = T{};
  }
  ~Shared() { (void)cudaFreeHost(data_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Device memory of a device, and pinned host memory, as movers are given them.
struct Memory {
  Space space = Space::kHostMemory;
  std::int32_t unit = -1;
  std::byte* base = nullptr;
  std::shared_ptr<void> owner;

  Address at(std::uint64_t offset) const { return {space, unit, base + offset, 0}; }
};

inline Memory device_place(std::int32_t device, Bytes bytes, std::vector<std::int32_t> readers) {
  DeviceMemoryConfig config;
  config.device = device;
  config.bytes = bytes;
  config.readers = std::move(readers);
  auto memory = must(DeviceMemory::create(config), "device memory");
  return {Space::kDeviceMemory, device, memory->base(), memory};
}

/// Registered in one piece, so that copies of any extent may be made.
inline Memory host_place(Bytes bytes, unsigned threads = 16) {
  PinnedMemoryConfig config;
  config.memory.bytes = bytes;
  config.memory.touch_threads = threads;
  config.chunk_bytes = bytes;
  auto memory = must(PinnedMemory::create(config), "pinned memory");
  must(memory->wait(120'000'000'000), "registering host memory");
  return {Space::kHostMemory, -1, memory->base(), memory};
}

}  // namespace lehr::transfer::test
