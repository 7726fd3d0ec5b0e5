// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Asynchronous copies into shared memory and the barriers they complete on. On sm_90 one thread
/// starts a bulk copy and the barrier counts its bytes; on sm_80 a warp copies 16 bytes a lane and
/// each lane arrives when its own have landed. Functions with `warp` in the name are called by a
/// whole warp.
namespace lehr::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LEHR_BULK_COPY 1
#else
#define LEHR_BULK_COPY 0
#endif
inline constexpr bool kBulkCopy = LEHR_BULK_COPY != 0;

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
#if LEHR_BULK_COPY
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
               : "memory");
}

/// Whether the phase of that parity is complete; never waits.
__device__ __forceinline__ bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Waits until the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
#if LEHR_BULK_COPY
  asm volatile(
      "{ .reg .pred done;\n"
      "retry: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra retry; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  while (!barrier_test(barrier, parity)) {
  }
#endif
}

/// One lane announces the bytes that copies will bring; call before any of them starts.
__device__ __forceinline__ void begin_fill(std::uint32_t barrier, std::uint32_t bytes) {
#if LEHR_BULK_COPY
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#else
  barrier_arrive(barrier);
#endif
}

/// sm_90: one lane copies `bytes` (a multiple of 16) from global or pinned host memory.
__device__ __forceinline__ void bulk_load(std::uint32_t to, std::uint64_t from, std::uint32_t bytes,
                                          std::uint32_t barrier, std::uint64_t policy) {
#if LEHR_BULK_COPY
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

/// The same without a preference: what is read again every step stays in L2 as far as it has room.
__device__ __forceinline__ void bulk_load(std::uint32_t to, std::uint64_t from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
#if LEHR_BULK_COPY
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

/// The warp copies `bytes`; `end_fill_warp` afterwards.
__device__ __forceinline__ void warp_load(std::uint32_t to, std::uint64_t from, std::uint32_t bytes,
                                          std::uint32_t lane) {
#pragma unroll 4
  for (std::uint32_t at = lane * 16; at < bytes; at += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                 : "memory");
  }
}
/// Each lane arrives once its own copies have landed.
__device__ __forceinline__ void end_fill_warp(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// One lane writes shared memory that a bulk copy filled to global memory; `bulk_store_read` waits
/// until the shared memory may be overwritten.
__device__ __forceinline__ void bulk_store(std::uint64_t to, std::uint32_t from,
                                           std::uint32_t bytes) {
#if LEHR_BULK_COPY
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
#else
#pragma unroll 1
  for (std::uint32_t at = 0; at < bytes; at += 16) {
    std::uint32_t x, y, z, w;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(from + at));
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + at), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
  }
#endif
}
__device__ __forceinline__ void bulk_store_read() {
#if LEHR_BULK_COPY
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void bulk_store_done() {
#if LEHR_BULK_COPY
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// Streaming data should not push tables and partial results out of L2.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy = 0;
#if LEHR_BULK_COPY
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

/// What is written once and read soon by the next kernel should stay in L2: writes to HBM among
/// streaming reads cost more than their bytes.
__device__ __forceinline__ void store_kept(void* to, float4 x) {
#if LEHR_BULK_COPY
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w), "l"(policy)
               : "memory");
#else
  *static_cast<float4*>(to) = x;
#endif
}

/// Counts up, and orders what this warp wrote before against what it reads afterwards, as seen by
/// the device. One lane; the warp is synchronised before and after.
__device__ __forceinline__ std::uint32_t take_ticket(std::uint32_t* counter) {
  std::uint32_t before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

/// Programmatic launch: wait for the kernel before; let the kernel after be scheduled.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if LEHR_BULK_COPY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_next_kernel() {
#if LEHR_BULK_COPY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lehr::kernels::cuda
