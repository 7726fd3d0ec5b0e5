// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The CTAs that work on one KV group: one, or on sm_90 a cluster that shares its memory.
namespace lehr::kernels::cuda {

struct Team {
  std::uint32_t rank = 0, size = 1;

  static __device__ __forceinline__ Team own() {
    Team t;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(t.rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(t.size));
#endif
    return t;
  }

  /// All threads of the team have come here, and see what the others wrote.
  __device__ __forceinline__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }

  /// The same shared variable in CTA `of`.
  template <class T>
  __device__ __forceinline__ const T* of(const T* mine, std::uint32_t of) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      std::uint64_t there = 0;
      asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(of));
      return reinterpret_cast<const T*>(there);
    }
#endif
    return mine;
  }
};

}  // namespace lehr::kernels::cuda
