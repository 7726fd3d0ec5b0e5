// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/move.hpp"

namespace lehr::kernels {
namespace {

constexpr int kInFlight = 4;  ///< loads of 16 bytes a thread

__global__ void __launch_bounds__(512)
    read_through_kernel(const uint4* from, std::uint64_t n, std::uint32_t* sink) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint32_t sum = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += kInFlight * step) {
    uint4 x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const std::uint64_t j = i + k * step;
      x[k] = j < n ? from[j] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (sum == 0x9E3779B9U) *sink = sum;  // keeps the loads
}

}  // namespace

Status read_through_cuda(const void* memory, std::uint64_t bytes, std::uint32_t ctas,
                         std::uint32_t* sink, void* stream) {
  if (memory == nullptr || sink == nullptr || bytes == 0 || bytes % 16 != 0 || ctas == 0) {
    return invalid("reading through memory needs memory, a multiple of 16 bytes, CTAs and a sink");
  }
  return cuda::launch(read_through_kernel, dim3(ctas), dim3(512), 0,
                      static_cast<cudaStream_t>(stream), false, static_cast<const uint4*>(memory),
                      bytes / 16, sink);
}

}  // namespace lehr::kernels
