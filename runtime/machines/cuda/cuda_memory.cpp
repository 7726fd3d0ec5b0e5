// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/cuda_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <sys/mman.h>

namespace lehr::runtime::cuda {

namespace {

/// No single copy may reach into two.
constexpr Bytes kPiece = 8 * kGiB;
constexpr unsigned kTouchers = 8;

}  // namespace

Result<DeviceMemory> DeviceMemory::create(Bytes bytes) {
  DeviceMemory made;
  const Bytes wanted = std::max<Bytes>(bytes, 256);
  LEHR_CUDA_TRY(cudaMalloc(&made.data_, wanted));
  made.bytes_ = wanted;
  LEHR_CUDA_TRY(cudaMemset(made.data_, 0, wanted));
  return made;
}

Result<PinnedMemory> PinnedMemory::create(Bytes bytes) {
  PinnedMemory made;
  const Bytes wanted = (std::max<Bytes>(bytes, 4096) + kMiB - 1) / kMiB * kMiB;
  void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return refused(Reason::kNoSpace,
                   fmt::format("{} bytes of host memory: {}", wanted, std::strerror(errno)));
  }
  made.data_ = memory;
  made.bytes_ = wanted;
  (void)madvise(memory, wanted, MADV_HUGEPAGE);
  std::vector<std::thread> touchers;
  const Bytes share = (wanted / kTouchers + 4095) / 4096 * 4096;
  for (Bytes at = 0; at < wanted; at += share) {
    touchers.emplace_back([memory, at, size = std::min(share, wanted - at)] {
      std::memset(static_cast<std::byte*>(memory) + at, 0, size);
    });
  }
  for (std::thread& t : touchers) t.join();
  while (made.registered_ < wanted) {
    const Bytes size = std::min(kPiece, wanted - made.registered_);
    LEHR_CUDA_TRY(cudaHostRegister(static_cast<std::byte*>(memory) + made.registered_, size,
                                   cudaHostRegisterPortable | cudaHostRegisterMapped));
    made.registered_ += size;
  }
  return made;
}

PinnedMemory::~PinnedMemory() {
  for (Bytes at = 0; at < registered_; at += kPiece)
    (void)cudaHostUnregister(static_cast<std::byte*>(data_) + at);
  if (data_ != nullptr) (void)munmap(data_, bytes_);
}

Result<std::uint64_t> PinnedMemory::address() const {
  void* seen = nullptr;
  LEHR_CUDA_TRY(cudaHostGetDevicePointer(&seen, data_, 0));
  return reinterpret_cast<std::uint64_t>(seen);
}

Result<Stream> Stream::create(bool urgent) {
  int least = 0, greatest = 0;
  LEHR_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  LEHR_CUDA_TRY(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  Stream made;
  made.stream_ = stream;
  return made;
}

Result<Event> Event::create(bool timed) {
  Event made;
  LEHR_CUDA_TRY(
      cudaEventCreateWithFlags(&made.event_, timed ? cudaEventDefault : cudaEventDisableTiming));
  return made;
}

Status use_device(std::int32_t device) {
  int count = 0;
  const cudaError_t asked = cudaGetDeviceCount(&count);
  if (asked != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return unsupported(
        fmt::format("machine cuda: no NVIDIA GPU here ({})",
                    cudaGetErrorString(asked == cudaSuccess ? cudaErrorNoDevice : asked)));
  }
  if (device < 0 || device >= count) {
    return unsupported(fmt::format("machine cuda: GPU {} of {}, counted from 0", device, count));
  }
  LEHR_CUDA_TRY(cudaSetDevice(device));
  return {};
}

std::string describe_device(std::int32_t device) {
  cudaDeviceProp prop{};
  int driver = 0;
  if (cudaGetDeviceProperties(&prop, device) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess) {
    return "unknown";
  }
  return fmt::format("{}, driver for CUDA {}.{}", prop.name, driver / 1000, driver % 1000 / 10);
}

}  // namespace lehr::runtime::cuda
