// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <cuda_runtime_api.h>

#include "kernels/base/result.hpp"
#include "kernels/cuda_status.hpp"
#include "kernels/shape.hpp"

namespace lehr::kernels::cuda {

/// What launches need to know of the current device; asked once a device.
struct DeviceFacts {
  int device = 0;
  std::uint32_t sms = 0;
  std::uint32_t shared_bytes = 0;  ///< a CTA may have at most
  std::uint32_t shared_bytes_of_sm = 0;
  bool bulk_copy = false;  ///< sm_90 and up
};
Result<DeviceFacts> current_device();

/// Refuses a stream of another device.
Status check_stream(cudaStream_t stream, const DeviceFacts& device);

/// A grid of a thread a list position of every group: x over positions, y and z over groups.
inline dim3 grid_over(const StepShape& shape, std::uint32_t positions, std::uint32_t threads) {
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t y = groups < 32768 ? groups : 32768;
  return dim3((positions + threads - 1) / threads, y, (groups + y - 1) / y);
}

/// Launches in clusters of `team` CTAs, with the programmatic attribute when asked; capturable.
template <class... Args>
Status launch_teams(void (*kernel)(Args...), dim3 grid, dim3 block, std::size_t shared,
                    cudaStream_t stream, bool programmatic, std::uint32_t team,
                    std::type_identity_t<Args>... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  unsigned n = 0;
  if (programmatic) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (team > 1) {
    attributes[n].id = cudaLaunchAttributeClusterDimension;
    attributes[n++].val.clusterDim = {team, 1, 1};
  }
  config.attrs = attributes;
  config.numAttrs = n;
  void* pointers[] = {&args...};
  LEHR_CUDA_TRY(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers));
  return {};
}

template <class... Args>
Status launch(void (*kernel)(Args...), dim3 grid, dim3 block, std::size_t shared,
              cudaStream_t stream, bool programmatic, std::type_identity_t<Args>... args) {
  return launch_teams(kernel, grid, block, shared, stream, programmatic, 1, args...);
}

}  // namespace lehr::kernels::cuda
