// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "tools/gpu/bench.hpp"

namespace lehr::gpu {
namespace {

template <int kInFlight>
__global__ void read_kernel(const uint4* from, std::size_t n, unsigned* sink) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + (kInFlight - 1) * step < n; i += kInFlight * step) {
    uint4 x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) x[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  for (; i < n; i += step) sum ^= __ldcs(from + i).x;
  if (sum == 0x9E3779B9U) *sink = sum;  // keeps the loads
}

__global__ void random_kernel(__half2* to, std::size_t n, std::uint64_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const std::uint64_t z = Rng::mix(seed + i * 0x9E3779B97F4A7C15ULL);
    // Sums of two uniforms: unit variance, no tables, nothing constant.
    const auto part = [&](int shift) {
      return static_cast<float>((z >> shift) & 0xFFFF) * (1.0F / 65536) - 0.5F;
    };
    to[i] =
        __floats2half2_rn((part(0) + part(16)) * 2.4494897F, (part(32) + part(48)) * 2.4494897F);
  }
}

}  // namespace

void fill_random(void* memory, std::size_t bytes, std::uint64_t seed, cudaStream_t stream) {
  random_kernel<<<4096, 256, 0, stream>>>(static_cast<__half2*>(memory), bytes / 4, seed);
  must(cudaGetLastError(), "fill_random");
}

Ceilings measure_ceilings(Report& report) {
  Ceilings c;
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attribute");
  kernels::test::DeviceArray<unsigned> sink(4);
  {
    const std::size_t bytes = std::size_t{8} << 30;
    kernels::test::DeviceArray<unsigned char> memory(bytes);
    fill_random(memory.get(), bytes, 1, nullptr);
    for (const int ctas : {2, 4, 8, 16}) {
      for (const int threads : {256, 512}) {
        const Spread s = time_graph(
            [&](cudaStream_t stream) {
              read_kernel<8><<<sms * ctas, threads, 0, stream>>>(
                  reinterpret_cast<const uint4*>(memory.get()), bytes / 16, sink.get());
            },
            1, 7);
        c.hbm = std::max(c.hbm, static_cast<double>(bytes) / (s.median * 1e-6));
      }
    }
    report.add({"read ceiling", "8 GiB", "HBM, best of 8 grids",
                static_cast<double>(bytes) / c.hbm * 1e6, 0, 0, static_cast<double>(bytes), c.hbm});
  }
  {
    const std::size_t bytes = std::size_t{512} << 20;
    void* host = nullptr;
    must(cudaHostAlloc(&host, bytes, cudaHostAllocDefault), "pinned");
    fill_random(host, bytes, 2, nullptr);
    for (const int ctas : {1, 2}) {
      const Spread s = time_graph(
          [&](cudaStream_t stream) {
            read_kernel<8><<<sms * ctas, 512, 0, stream>>>(static_cast<const uint4*>(host),
                                                           bytes / 16, sink.get());
          },
          1, 5);
      c.link = std::max(c.link, static_cast<double>(bytes) / (s.median * 1e-6));
    }
    report.add({"read ceiling", "512 MiB", "pinned host memory, by kernels",
                static_cast<double>(bytes) / c.link * 1e6, 0, 0, static_cast<double>(bytes),
                c.link});
    must(cudaFreeHost(host), "free");
  }
  return c;
}

}  // namespace lehr::gpu
