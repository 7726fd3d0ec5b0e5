// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

/// Pages that say what they are, written and checked by the device wherever they lie.
namespace lehr::transfer::test {

/// A page at an address: word 0 is its id, word 1 its version, word 2 the sum of all other words,
/// and every further word follows from id, version and place.
struct PageRef {
  std::uint64_t address = 0;
  std::uint32_t page = 0;
  std::uint32_t version = 0;
};

struct PageErrors {
  unsigned long long pages = 0;  ///< checked
  unsigned long long wrong = 0;  ///< id, version, checksum or any word is not what it should be
  std::uint64_t first_address = 0;
  std::uint32_t first_page = 0, first_version = 0, found_page = 0, found_version = 0;
};

/// `refs` is readable by the device. `bytes`: of a page, a multiple of 8, at least 32.
cudaError_t fill_pages(const PageRef* refs, std::uint32_t count, std::uint32_t bytes,
                       cudaStream_t stream);
/// Waits `delay_ns` on the device first, then checks each page; adds to `errors`.
cudaError_t verify_pages(const PageRef* refs, std::uint32_t count, std::uint32_t bytes,
                         PageErrors* errors, std::uint64_t delay_ns, cudaStream_t stream);

/// Streams through memory, memory-bound: `ctas` of 512 threads.
cudaError_t read_memory(const void* from, std::size_t bytes, int ctas, unsigned* sink,
                        cudaStream_t stream);
/// SMs that read_memory runs on leave most of their memory to shared memory,
/// as attention kernels have it, instead of to L1.
cudaError_t prefer_shared_memory(bool shared);
/// The same, writing.
cudaError_t write_memory(void* to, std::size_t bytes, int ctas, cudaStream_t stream);

}  // namespace lehr::transfer::test
