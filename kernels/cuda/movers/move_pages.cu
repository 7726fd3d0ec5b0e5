// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/move.hpp"

namespace lehr::kernels {
namespace {

using namespace lehr::kernels::cuda;

constexpr std::uint32_t kWarp = 32;

/// A move as the kernels see it: every page is `chunks` chunks, `per_piece` to a piece; the last
/// chunk of a piece may be smaller.
struct Work {
  const PagePair* pairs;
  std::uint32_t chunks_in_all;
  std::uint32_t chunks;
  std::uint32_t per_piece;
  std::uint32_t stage_bytes;
  std::uint32_t stages;
  PageLayout layout;
};

struct Chunk {
  std::uint64_t from, to;
  std::uint32_t bytes, pad;
};

/// Starts the load of the pair that chunk `index` of the whole move belongs to. It may cross the
/// link behind everything that is in flight there: nothing may depend on it before a block later,
/// so the load is kept where it is written.
__device__ __forceinline__ PagePair pair_of(const Work& w, std::uint32_t index) {
  PagePair pair;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.from), "=l"(pair.to)
               : "l"(w.pairs + index / w.chunks)
               : "memory");
  return pair;
}

__device__ __forceinline__ Chunk chunk_of_pair(const Work& w, std::uint32_t index,
                                               const PagePair& pair) {
  const std::uint32_t within = index % w.chunks;
  const std::uint32_t piece = within / w.per_piece;
  const std::uint32_t at = (within - piece * w.per_piece) * w.stage_bytes;
  const std::uint32_t bytes = min(w.stage_bytes, w.layout.piece_bytes - at);
  return {pair.from + w.layout.from[piece] + at, pair.to + w.layout.to[piece] + at,
          pair.from == 0 ? 0 : bytes, 0};
}

/// The chunks of one CTA, which takes every gridDim.x-th of all; 32 of them are a block. Two blocks
/// lie in shared memory, the pairs of a third are on their way.
struct Chunks {
  /// A CTA's own, beside its stages.
  struct Shared {
    std::uint64_t barriers[kWarp];  ///< one a stage
    Chunk blocks[2][kWarp];
  };

  Chunk (*blocks)[kWarp];
  std::uint32_t mine;
  std::uint32_t lane;
  PagePair ahead;

  __device__ std::uint32_t index(std::uint32_t n) const {
    // Past the end: any pair will do, its chunk is never used.
    return blockIdx.x + min(n, mine - 1) * gridDim.x;
  }
  /// Makes the first chunks known and the barriers ready for `arrivals` each; false when there is
  /// nothing for this CTA. The whole warp, which synchronises before it goes on.
  __device__ bool begin(const Work& w, Shared& shared, std::uint32_t arrivals) {
    if (blockIdx.x >= w.chunks_in_all) return false;
    blocks = shared.blocks;
    lane = threadIdx.x;
    mine = (w.chunks_in_all - blockIdx.x - 1) / gridDim.x + 1;
    const PagePair first = pair_of(w, index(lane)), second = pair_of(w, index(kWarp + lane));
    blocks[0][lane] = chunk_of_pair(w, index(lane), first);
    blocks[1][lane] = chunk_of_pair(w, index(kWarp + lane), second);
    if (lane < w.stages) barrier_init(shared_address(&shared.barriers[lane]), arrivals);
    return true;
  }
  /// Before and after the work on the block that starts with chunk `n`; the whole warp.
  __device__ void before_block(const Work& w, std::uint32_t n) {
    ahead = pair_of(w, index(n + 2 * kWarp + lane));
  }
  __device__ void after_block(const Work& w, std::uint32_t n) {
    __syncwarp();
    blocks[n / kWarp & 1][lane] = chunk_of_pair(w, index(n + 2 * kWarp + lane), ahead);
    __syncwarp();
  }
  __device__ const Chunk& at(std::uint32_t n) const { return blocks[n / kWarp & 1][n % kWarp]; }
};

#if LEHR_BULK_COPY
template <int kOpen>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kOpen) : "memory");
}

__device__ __forceinline__ void store_chunk(const Chunk& chunk, std::uint32_t stage, bool keep,
                                            std::uint64_t policy) {
  if (chunk.bytes == 0) {
    // Of a pair that moves nothing: an empty group, so that groups are counted alike.
  } else if (keep) {
    bulk_store(chunk.to, stage, chunk.bytes);
  } else {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
            chunk.to),
        "r"(stage), "r"(chunk.bytes), "l"(policy)
        : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#endif

/// sm_90: one lane runs a ring of bulk copies, memory to shared memory to memory. What makes one
/// lane enough is that it never waits for a descriptor: all lanes fetch those of the chunks two
/// blocks ahead (a block is 32 chunks) while it works.
template <int kOpen>
__global__ void __launch_bounds__(kWarp)
    move_ring_kernel(const __grid_constant__ Work w, bool keep) {
#if LEHR_BULK_COPY
  extern __shared__ __align__(128) unsigned char buffers[];
  __shared__ Chunks::Shared shared;
  Chunks chunks;
  if (!chunks.begin(w, shared, 1)) return;
  const std::uint32_t lane = chunks.lane, mine = chunks.mine;
  barrier_init_fence();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncwarp();

  const std::uint32_t stage0 = shared_address(buffers);
  const std::uint32_t barrier0 = shared_address(shared.barriers);
  const std::uint64_t policy = evict_first_policy();
  const auto load = [&](std::uint32_t n, std::uint32_t stage) {
    const Chunk& c = chunks.at(n);
    const std::uint32_t barrier = barrier0 + stage * 8;
    begin_fill(barrier, c.bytes);
    if (c.bytes != 0) bulk_load(stage0 + stage * w.stage_bytes, c.from, c.bytes, barrier, policy);
  };

  if (lane == 0) {
    const std::uint32_t first = min(mine, w.stages);
    for (std::uint32_t n = 0; n < first; ++n) load(n, n);
  }
  std::uint32_t stage = 0, parity = 0, refill = 0;
  for (std::uint32_t block = 0; block < mine; block += kWarp) {
    chunks.before_block(w, block);
    if (lane == 0) {
      const std::uint32_t end = min(mine, block + kWarp);
      for (std::uint32_t n = block; n < end; ++n) {
        barrier_wait(barrier0 + stage * 8, parity);
        store_chunk(chunks.at(n), stage0 + stage * w.stage_bytes, keep, policy);
        if (++stage == w.stages) {
          stage = 0;
          parity ^= 1;
        }
        // The stage stored kOpen chunks ago has been read by now, or is waited for.
        if (n < kOpen) continue;
        const std::uint32_t next = n - kOpen + w.stages;
        if (next < mine) {
          wait_stores_read<kOpen>();
          load(next, refill);
        }
        if (++refill == w.stages) refill = 0;
      }
    }
    chunks.after_block(w, block);
  }
  // Writes are complete before the kernel is: whoever is ordered behind it sees the pages.
  if (lane == 0) bulk_store_done();
#endif
}

/// sm_80: a warp copies 16 bytes a lane into shared memory, `stages` chunks ahead, and writes them
/// out from there.
__global__ void __launch_bounds__(kWarp) move_copies_kernel(const __grid_constant__ Work w) {
  extern __shared__ __align__(128) unsigned char buffers[];
  __shared__ Chunks::Shared shared;
  Chunks chunks;
  if (!chunks.begin(w, shared, kWarp)) return;
  const std::uint32_t lane = chunks.lane, mine = chunks.mine;
  __syncwarp();

  const std::uint32_t stage0 = shared_address(buffers);
  const std::uint32_t barrier0 = shared_address(shared.barriers);
  const auto load = [&](std::uint32_t n, std::uint32_t stage) {
    const Chunk& c = chunks.at(n);
    warp_load(stage0 + stage * w.stage_bytes, c.from, c.bytes, lane);
    end_fill_warp(barrier0 + stage * 8);
  };
  const std::uint32_t first = min(mine, w.stages);
  for (std::uint32_t n = 0; n < first; ++n) load(n, n);
  std::uint32_t stage = 0, parity = 0;
  for (std::uint32_t block = 0; block < mine; block += kWarp) {
    chunks.before_block(w, block);
    const std::uint32_t end = min(mine, block + kWarp);
    for (std::uint32_t n = block; n < end; ++n) {
      barrier_wait(barrier0 + stage * 8, parity);
      const Chunk c = chunks.at(n);
      const unsigned char* from = buffers + stage * w.stage_bytes;
#pragma unroll 4
      for (std::uint32_t at = lane * 16; at < c.bytes; at += kWarp * 16) {
        __stcs(reinterpret_cast<uint4*>(c.to + at), *reinterpret_cast<const uint4*>(from + at));
      }
      __syncwarp();  // every lane has read the stage
      if (n + w.stages < mine) load(n + w.stages, stage);
      if (++stage == w.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    chunks.after_block(w, block);
  }
}

using RingKernel = void (*)(Work, bool);
RingKernel ring_kernel(std::uint32_t open) {
  switch (open) {
    case 1:
      return move_ring_kernel<1>;
    case 2:
      return move_ring_kernel<2>;
    case 4:
      return move_ring_kernel<4>;
    default:
      return move_ring_kernel<8>;
  }
}

/// Shared memory above 48 KiB is asked for once a kernel and device.
template <class Kernel>
Status allow_shared(Kernel kernel, std::uint32_t bytes) {
  if (bytes <= 48 * 1024) return {};
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
  return {};
}

}  // namespace

Status move_pages_cuda(const MoveParams& params, const PageLayout& layout, const MoveRing& ring,
                       void* stream) {
  LEHR_TRY(check_move(params, layout, ring));
  if (params.pages == 0) return {};
  LEHR_ASSIGN(const DeviceFacts device, current_device());
  LEHR_TRY(check_stream(static_cast<cudaStream_t>(stream), device));
  // Small pieces leave no part of the ring unused: it gets more, smaller stages.
  Work w{};
  w.pairs = params.pairs;
  w.stage_bytes = std::min(ring.stage_bytes, layout.piece_bytes);
  w.stages = std::min(kWarp, ring.shared_bytes() / w.stage_bytes);
  w.per_piece = (layout.piece_bytes + w.stage_bytes - 1) / w.stage_bytes;
  w.chunks = w.per_piece * layout.count;
  const std::uint64_t all = std::uint64_t{w.chunks} * params.pages;
  if (all > 0x7FFFFFFF) {
    return invalid("a move of " + std::to_string(all) + " chunks: expected fewer than 2^31",
                   Reason::kOutOfRange);
  }
  w.chunks_in_all = static_cast<std::uint32_t>(all);
  w.layout = layout;
  const std::uint32_t shared = w.stages * w.stage_bytes;
  if (shared + 4096 > device.shared_bytes) {
    return invalid("a ring of " + std::to_string(shared) + " bytes: the device has " +
                       std::to_string(device.shared_bytes) + " of shared memory",
                   Reason::kOutOfRange);
  }
  const std::uint32_t ctas = std::min(ring.ctas, w.chunks_in_all);
  const auto s = static_cast<cudaStream_t>(stream);
  if (ring.register_copies || !device.bulk_copy) {
    LEHR_TRY(allow_shared(move_copies_kernel, shared));
    return launch(move_copies_kernel, dim3(ctas), dim3(kWarp), shared, s, false, w);
  }
  const RingKernel kernel = ring_kernel(ring.open_stores);
  LEHR_TRY(allow_shared(kernel, shared));
  return launch(kernel, dim3(ctas), dim3(kWarp), shared, s, false, w, ring.keep_in_l2);
}

}  // namespace lehr::kernels
