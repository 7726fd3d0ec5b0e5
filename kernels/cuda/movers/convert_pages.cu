// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/convert_page.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/quantize.hpp"

namespace lehr::kernels {
namespace {

using cuda::kPageThreads;

/// A CTA's shared memory: `sources` pages as they come, one as it goes.
struct Buffers {
  std::uint32_t sources;
  std::uint32_t source_bytes;
};

/// Every thread starts its part of the copy, and closes a group even for nothing, so that groups
/// can be counted.
__device__ void start_load(const StepShape& shape, PageEntry entry, unsigned char* to) {
  if (entry != kAbsentPage) {
    const std::uint32_t bytes =
        stored_page_bytes(entry_formats(entry), shape.page_tokens, shape.head_dim);
    const std::uint32_t base = cuda::shared_address(to);
    for (std::uint32_t at = threadIdx.x * 16; at < bytes; at += kPageThreads * 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + at),
                   "l"(entry_address(entry) + at)
                   : "memory");
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ void store_page(const unsigned char* from, std::uint64_t to, std::uint32_t bytes) {
  for (std::uint32_t at = threadIdx.x * 16; at < bytes; at += kPageThreads * 16) {
    __stcs(reinterpret_cast<uint4*>(to + at), *reinterpret_cast<const uint4*>(from + at));
  }
}

__global__ void __launch_bounds__(kPageThreads)
    convert_pages_kernel(StepShape shape, QuantizeParams p, Buffers b) {
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* converted = memory + std::size_t{b.sources} * b.source_bytes;
  const std::uint32_t bytes = stored_page_bytes(p.to, shape.page_tokens, shape.head_dim);
  const bool ahead = b.sources == 2;
  // The lists may lie over a link: a turn's words are asked for two turns before.
  const auto source = [&](std::uint32_t n) { return n < p.count ? p.sources[n] : kAbsentPage; };
  const auto destination = [&](std::uint32_t n) {
    return n < p.count ? p.destinations[n] : std::uint64_t{0};
  };
  const std::uint32_t stride = gridDim.x;
  PageEntry entry = source(blockIdx.x), next = source(blockIdx.x + stride);
  std::uint64_t to = destination(blockIdx.x), to_next = destination(blockIdx.x + stride);
  start_load(shape, entry, memory);
  std::uint32_t buffer = 0;
  for (std::uint32_t n = blockIdx.x; n < p.count; n += stride) {
    const PageEntry after = source(n + 2 * stride);
    const std::uint64_t to_after = destination(n + 2 * stride);
    if (ahead) {
      start_load(shape, next, memory + (buffer ^ 1U) * b.source_bytes);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    if (entry != kAbsentPage && to != 0) {
      cuda::convert_page({memory + buffer * b.source_bytes, entry_formats(entry), shape.page_tokens,
                          shape.head_dim},
                         p.to, converted);
      __syncthreads();
      store_page(converted, to, bytes);
    }
    __syncthreads();  // both buffers are free again
    if (ahead) {
      buffer ^= 1U;
    } else {
      start_load(shape, next, memory);
    }
    entry = next;
    next = after;
    to = to_next;
    to_next = to_after;
  }
}

}  // namespace

Status convert_pages_cuda(const StepShape& shape, const QuantizeParams& params, std::uint32_t ctas,
                          void* stream) {
  LEHR_TRY(check_quantize(shape, params));
  if (ctas == 0) return invalid("a conversion by no CTAs", Reason::kOutOfRange);
  if (params.count > 1U << 30) {  // so that indices past the end stay numbers
    return invalid(
        "a conversion of " + std::to_string(params.count) + " pages: expected at most 2^30",
        Reason::kOutOfRange);
  }
  if (params.count == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  // No form of a page is larger than the one of 16-bit values: int8's scales are less than it
  // saves.
  Buffers b{2, stored_page_bytes(DType::kF16, shape.page_tokens, shape.head_dim)};
  const std::uint32_t converted = slot_bytes(params.to, shape.page_tokens, shape.head_dim);
  const std::uint32_t room = device.shared_bytes - 256;  // beside what the kernel itself declares
  if (b.sources * b.source_bytes + converted > room) b.sources = 1;
  const std::uint32_t shared = b.sources * b.source_bytes + converted;
  if (shared > room) {
    return unsupported("a page of " + std::to_string(b.source_bytes) +
                       " bytes in two forms: the device has " +
                       std::to_string(device.shared_bytes) + " of shared memory");
  }
  if (shared > 48 * 1024) {
    LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(convert_pages_kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared)));
  }
  return cuda::launch(convert_pages_kernel, dim3(std::min({ctas, params.count, 1U << 16})),
                      dim3(kPageThreads), shared, s, false, shape, params, b);
}

}  // namespace lehr::kernels
