// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/ceilings.hpp"

#include <algorithm>

#include "kernels/decode_step.hpp"
#include "runtime/machines/cuda/cuda_memory.hpp"

namespace lehr::runtime::cuda {

namespace {

constexpr Bytes kHbmBytes = 3 * kGiB;
constexpr Bytes kHostBytes = 256 * kMiB;
constexpr int kTurns = 8;

/// Bytes a second of the fastest of several turns; the first warms up.
template <class Enqueue>
Result<double> rate(const Stream& stream, Bytes bytes, Enqueue&& enqueue) {
  LEHR_ASSIGN(const Event begin, Event::create(true));
  LEHR_ASSIGN(const Event end, Event::create(true));
  double best = 0;
  for (int turn = 0; turn <= kTurns; ++turn) {
    LEHR_CUDA_TRY(cudaEventRecord(begin.get(), stream.get()));
    LEHR_TRY(enqueue());
    LEHR_CUDA_TRY(cudaEventRecord(end.get(), stream.get()));
    LEHR_CUDA_TRY(cudaEventSynchronize(end.get()));
    float ms = 0;
    LEHR_CUDA_TRY(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    if (turn > 0) best = std::max(best, static_cast<double>(bytes) / (ms * 1e-3));
  }
  return best;
}

}  // namespace

Result<DecodeCeilings> measure_ceilings(std::int32_t device) {
  LEHR_TRY(use_device(device));
  LEHR_ASSIGN(const DeviceMemory hbm, DeviceMemory::create(kHbmBytes));
  LEHR_ASSIGN(const PinnedMemory host, PinnedMemory::create(kHostBytes));
  LEHR_ASSIGN(const std::uint64_t seen, host.address());
  LEHR_ASSIGN(const DeviceMemory sink, DeviceMemory::create(256));
  LEHR_ASSIGN(const DeviceMemory stamps, DeviceMemory::create(sizeof(kernels::LayerStamps)));
  LEHR_ASSIGN(const Stream stream, Stream::create(false));
  LEHR_CUDA_TRY(cudaDeviceSynchronize());
  const auto read = [&](const void* from, Bytes bytes) {
    return kernels::read_bytes_cuda(from, bytes, sink.as<std::uint32_t>(),
                                    stamps.as<kernels::LayerStamps>(), stream.get());
  };
  DecodeCeilings out;
  LEHR_ASSIGN(out.hbm,
              rate(stream, kHbmBytes, [&] { return read(hbm.as<const void>(), kHbmBytes); }));
  LEHR_ASSIGN(out.in_place, rate(stream, kHostBytes, [&] {
                return read(reinterpret_cast<const void*>(seen), kHostBytes);
              }));
  LEHR_ASSIGN(out.up, rate(stream, kHostBytes, [&]() -> Status {
                LEHR_CUDA_TRY(cudaMemcpyAsync(hbm.as<void>(), host.as<void>(), kHostBytes,
                                              cudaMemcpyHostToDevice, stream.get()));
                return {};
              }));
  return out;
}

}  // namespace lehr::runtime::cuda
