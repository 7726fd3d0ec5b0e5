// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>

#include "kernels/cuda/detail/launch.hpp"

namespace lehr::kernels::cuda {

Result<DeviceFacts> current_device() {
  DeviceFacts facts;
  LEHR_CUDA_TRY(cudaGetDevice(&facts.device));
  int sms = 0, block = 0, sm = 0, major = 0;
  LEHR_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, facts.device));
  LEHR_CUDA_TRY(
      cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, facts.device));
  LEHR_CUDA_TRY(
      cudaDeviceGetAttribute(&sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, facts.device));
  LEHR_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, facts.device));
  facts.sms = static_cast<std::uint32_t>(sms);
  facts.shared_bytes = static_cast<std::uint32_t>(block);
  facts.shared_bytes_of_sm = static_cast<std::uint32_t>(sm);
  facts.bulk_copy = major >= 9;
  if (major < 8) return unsupported("a device before compute capability 8.0");
  return facts;
}

Status check_stream(cudaStream_t stream, const DeviceFacts& device) {
  if (stream == nullptr) return {};
  // A stream in capture must not be asked; it was checked when the same call ran eagerly, or the
  // launch fails.
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  LEHR_CUDA_TRY(cudaStreamIsCapturing(stream, &capturing));
  if (capturing != cudaStreamCaptureStatusNone) return {};
  int owner = 0;
  LEHR_CUDA_TRY(cudaStreamGetDevice(stream, &owner));
  if (owner != device.device) {
    return invalid("the stream belongs to device " + std::to_string(owner) +
                   ", the current one is " + std::to_string(device.device));
  }
  return {};
}

}  // namespace lehr::kernels::cuda
