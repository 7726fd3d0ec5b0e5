// SPDX-License-Identifier: Apache-2.0
#include "tests/transfer/cuda/pages.hpp"

namespace lehr::transfer::test {
namespace {

__device__ std::uint64_t word_of(std::uint32_t page, std::uint32_t version, std::uint32_t i) {
  std::uint64_t z = (std::uint64_t{page} << 32 | version) + (i + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

__device__ std::uint64_t sum_of_warp(std::uint64_t x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, offset);
  return x;
}

__global__ void fill_kernel(const PageRef* refs, std::uint32_t count, std::uint32_t words) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warps = gridDim.x * blockDim.x / 32;
  for (std::uint32_t p = (blockIdx.x * blockDim.x + threadIdx.x) / 32; p < count; p += warps) {
    const PageRef ref = refs[p];
    auto* to = reinterpret_cast<std::uint64_t*>(ref.address);
    std::uint64_t sum = lane == 0 ? std::uint64_t{ref.page} + ref.version : 0;
    for (std::uint32_t i = lane; i < words; i += 32) {
      if (i < 3) continue;
      const std::uint64_t word = word_of(ref.page, ref.version, i);
      to[i] = word;
      sum += word;
    }
    sum = sum_of_warp(sum);
    if (lane == 0) {
      to[0] = ref.page;
      to[1] = ref.version;
      to[2] = sum;
    }
  }
}

__global__ void verify_kernel(const PageRef* refs, std::uint32_t count, std::uint32_t words,
                              PageErrors* errors, std::uint64_t delay_ns) {
  if (delay_ns != 0) {
    std::uint64_t start = 0, now = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
      __nanosleep(1000);
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < delay_ns);
  }
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warps = gridDim.x * blockDim.x / 32;
  unsigned checked = 0;
  for (std::uint32_t p = (blockIdx.x * blockDim.x + threadIdx.x) / 32; p < count; p += warps) {
    const PageRef ref = refs[p];
    const auto* from = reinterpret_cast<const volatile std::uint64_t*>(ref.address);
    const std::uint64_t found_page = from[0], found_version = from[1];
    bool good = found_page == ref.page && found_version == ref.version;
    std::uint64_t sum = lane == 0 ? found_page + found_version : 0;
    for (std::uint32_t i = lane; i < words; i += 32) {
      if (i < 3) continue;
      const std::uint64_t word = from[i];
      good = good && word == word_of(ref.page, ref.version, i);
      sum += word;
    }
    good = sum_of_warp(sum) == from[2] && good;
    good = __all_sync(0xFFFFFFFFU, good);
    ++checked;
    if (!good && lane == 0 && atomicAdd(&errors->wrong, 1ULL) == 0) {
      errors->first_address = ref.address;
      errors->first_page = ref.page;
      errors->first_version = ref.version;
      errors->found_page = static_cast<std::uint32_t>(found_page);
      errors->found_version = static_cast<std::uint32_t>(found_version);
    }
  }
  if (lane == 0 && checked != 0)
    atomicAdd(&errors->pages, static_cast<unsigned long long>(checked));
}

__global__ void read_kernel(const uint4* from, std::size_t n, unsigned* sink) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  unsigned sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
    uint4 x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::size_t j = i + k * step;
      x[k] = j < n ? from[j] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (sum == 0x9E3779B9U) *sink = sum;  // keeps the loads
}

__global__ void write_kernel(uint4* to, std::size_t n) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const auto x = static_cast<unsigned>(i * 0x9E3779B9U);
    to[i] = uint4{x, x ^ 1, x ^ 2, x ^ 3};
  }
}

unsigned grid_for(std::uint32_t count) {
  const std::uint32_t warps = count < 4224 ? count : 4224;
  return (warps + 7) / 8;
}

}  // namespace

cudaError_t fill_pages(const PageRef* refs, std::uint32_t count, std::uint32_t bytes,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  fill_kernel<<<grid_for(count), 256, 0, stream>>>(refs, count, bytes / 8);
  return cudaGetLastError();
}

cudaError_t verify_pages(const PageRef* refs, std::uint32_t count, std::uint32_t bytes,
                         PageErrors* errors, std::uint64_t delay_ns, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  verify_kernel<<<grid_for(count), 256, 0, stream>>>(refs, count, bytes / 8, errors, delay_ns);
  return cudaGetLastError();
}

cudaError_t read_memory(const void* from, std::size_t bytes, int ctas, unsigned* sink,
                        cudaStream_t stream) {
  read_kernel<<<ctas, 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, sink);
  return cudaGetLastError();
}

cudaError_t prefer_shared_memory(bool shared) {
  int devices = 0, current = 0;
  cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess) status = cudaGetDevice(&current);
  for (int d = 0; d < devices && status == cudaSuccess; ++d) {
    status = cudaSetDevice(d);
    if (status == cudaSuccess) {
      status = cudaFuncSetAttribute(
          read_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
          shared ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault);
    }
  }
  const cudaError_t back = cudaSetDevice(current);
  return status == cudaSuccess ? back : status;
}

cudaError_t write_memory(void* to, std::size_t bytes, int ctas, cudaStream_t stream) {
  write_kernel<<<ctas, 512, 0, stream>>>(static_cast<uint4*>(to), bytes / 16);
  return cudaGetLastError();
}

}  // namespace lehr::transfer::test
