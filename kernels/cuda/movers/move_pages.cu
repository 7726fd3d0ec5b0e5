// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/move.hpp"

namespace lehr::kernels {
namespace {

using namespace lehr::kernels::cuda;

constexpr std::uint32_t kWarp = 32;

/// Pieces up to this size are moved in groups, where one side has them one after the other.
constexpr std::uint32_t kSmallPiece = 4096;
constexpr std::uint32_t kGroupBytes = 8192;

/// A move as the kernels see it: every page is `chunks` chunks, `per_piece` to a piece, and the
/// last chunk of a piece may be smaller; or `group` pieces to a chunk, and the last of a page may
/// have fewer.
struct Work {
  const PagePair* pairs;
  std::uint32_t chunks_in_all;
  std::uint32_t chunks;
  std::uint32_t per_piece;
  std::uint32_t group;
  std::uint32_t stage_bytes;
  std::uint32_t stages;
  PageLayout layout;
};

struct Chunk {
  std::uint64_t from, to;
  std::uint32_t bytes;
  std::uint32_t piece;  ///< the first one
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
  const std::uint32_t step = within / w.per_piece;
  const std::uint32_t at = (within - step * w.per_piece) * w.stage_bytes;
  const std::uint32_t piece = step * w.group;
  const std::uint32_t left =
      w.group == 1 ? w.layout.piece_bytes - at : (w.layout.count - piece) * w.layout.piece_bytes;
  return {pair.from + w.layout.from[piece] + at, pair.to + w.layout.to[piece] + at,
          pair.from == 0 ? 0 : min(w.stage_bytes, left), piece};
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

__device__ __forceinline__ void store_bytes(std::uint64_t to, std::uint32_t stage,
                                            std::uint32_t bytes, bool keep, std::uint64_t policy) {
  if (keep) {
    bulk_store(to, stage, bytes);
  } else {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
        "r"(stage), "r"(bytes), "l"(policy)
        : "memory");
  }
}
__device__ __forceinline__ void commit_stores() {
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
        const Chunk& c = chunks.at(n);
        // Of a pair that moves nothing: an empty group, so that groups are counted alike.
        if (c.bytes != 0) store_bytes(c.to, stage0 + stage * w.stage_bytes, c.bytes, keep, policy);
        commit_stores();
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

/// sm_90, small pieces that follow each other in memory on one side (kGather: where they go to):
/// one copy carries a chunk of them on that side, where every copy crosses a link, and a copy of
/// each lane a piece on the other. One lane alone could start no more than about 2.5 million copies
/// a second.
template <int kOpen, bool kGather>
__global__ void __launch_bounds__(kWarp)
    move_groups_kernel(const __grid_constant__ Work w, bool keep) {
#if LEHR_BULK_COPY
  extern __shared__ __align__(128) unsigned char buffers[];
  __shared__ Chunks::Shared shared;
  __shared__ std::uint64_t apart[PageLayout::kMaxPieces];
  Chunks chunks;
  if (!chunks.begin(w, shared, 1)) return;
  const std::uint32_t lane = chunks.lane, mine = chunks.mine, piece_bytes = w.layout.piece_bytes;
  for (std::uint32_t p = lane; p < w.layout.count; p += kWarp) {
    apart[p] = kGather ? w.layout.from[p] : w.layout.to[p];
  }
  barrier_init_fence();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncwarp();

  const std::uint32_t stage0 = shared_address(buffers);
  const std::uint32_t barrier0 = shared_address(shared.barriers);
  const std::uint64_t policy = evict_first_policy();
  // Calls f(far address, shared address) for the lane's pieces of a chunk.
  const auto pieces = [&](const Chunk& c, std::uint32_t stage, auto f) {
    const std::uint64_t far = (kGather ? c.from : c.to) - apart[c.piece];
    for (std::uint32_t p = lane; p * piece_bytes < c.bytes; p += kWarp) {
      f(far + apart[c.piece + p], stage + p * piece_bytes);
    }
  };
  const auto load = [&](std::uint32_t n, std::uint32_t at) {
    const Chunk& c = chunks.at(n);
    const std::uint32_t barrier = barrier0 + at * 8, stage = stage0 + at * w.stage_bytes;
    if (lane == 0) begin_fill(barrier, c.bytes);
    __syncwarp();
    if constexpr (kGather) {
      pieces(c, stage, [&](std::uint64_t far, std::uint32_t here) {
        bulk_load(here, far, piece_bytes, barrier, policy);
      });
    } else {
      if (lane == 0 && c.bytes != 0) bulk_load(stage, c.from, c.bytes, barrier, policy);
    }
  };
  const auto store = [&](std::uint32_t n, std::uint32_t at) {
    const Chunk& c = chunks.at(n);
    const std::uint32_t stage = stage0 + at * w.stage_bytes;
    if constexpr (kGather) {
      if (lane == 0 && c.bytes != 0) store_bytes(c.to, stage, c.bytes, keep, policy);
    } else {
      pieces(c, stage, [&](std::uint64_t far, std::uint32_t here) {
        store_bytes(far, here, piece_bytes, keep, policy);
      });
    }
    commit_stores();
  };

  const std::uint32_t first = min(mine, w.stages);
  for (std::uint32_t n = 0; n < first; ++n) load(n, n);
  std::uint32_t stage = 0, parity = 0, refill = 0;
  for (std::uint32_t block = 0; block < mine; block += kWarp) {
    chunks.before_block(w, block);
    const std::uint32_t end = min(mine, block + kWarp);
    for (std::uint32_t n = block; n < end; ++n) {
      barrier_wait(barrier0 + stage * 8, parity);
      store(n, stage);
      if (++stage == w.stages) {
        stage = 0;
        parity ^= 1;
      }
      if (n < kOpen) continue;
      const std::uint32_t next = n - kOpen + w.stages;
      if (next < mine) {
        wait_stores_read<kOpen>();
        __syncwarp();  // every lane's stores have read the stage
        load(next, refill);
      }
      if (++refill == w.stages) refill = 0;
    }
    chunks.after_block(w, block);
  }
  bulk_store_done();
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
template <bool kGather>
RingKernel groups_kernel(std::uint32_t open) {
  switch (open) {
    case 1:
      return move_groups_kernel<1, kGather>;
    case 2:
      return move_groups_kernel<2, kGather>;
    case 4:
      return move_groups_kernel<4, kGather>;
    default:
      return move_groups_kernel<8, kGather>;
  }
}
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

/// Whether pieces follow each other in memory.
bool in_a_row(const PageLayout& layout, const std::uint64_t (&offsets)[PageLayout::kMaxPieces]) {
  for (std::uint32_t i = 0; i < layout.count; ++i) {
    if (offsets[i] != offsets[0] + std::uint64_t{i} * layout.piece_bytes) return false;
  }
  return true;
}

enum class Groups { kNone, kGather, kScatter };
Groups groups_of(const PageLayout& layout, const MoveRing& ring) {
  if (ring.one_by_one || layout.count == 1 || layout.piece_bytes > kSmallPiece ||
      ring.stage_bytes < kGroupBytes) {
    return Groups::kNone;
  }
  if (in_a_row(layout, layout.to)) return Groups::kGather;
  return in_a_row(layout, layout.from) ? Groups::kScatter : Groups::kNone;
}

/// What a kernel has beside its stages, at most.
constexpr std::uint32_t kStaticShared = 4096;

/// Shared memory above 48 KiB in all has to be asked for.
template <class Kernel>
Status allow_shared(Kernel kernel, std::uint32_t bytes) {
  if (bytes + kStaticShared <= 48 * 1024) return {};
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
  const bool bulk = device.bulk_copy && !ring.register_copies;
  const Groups groups = bulk ? groups_of(layout, ring) : Groups::kNone;
  if (groups == Groups::kNone) {
    w.group = 1;
    w.stage_bytes = std::min(ring.stage_bytes, layout.piece_bytes);
    w.per_piece = (layout.piece_bytes + w.stage_bytes - 1) / w.stage_bytes;
    w.chunks = w.per_piece * layout.count;
  } else {
    w.group = std::min(layout.count, kGroupBytes / layout.piece_bytes);
    w.stage_bytes = w.group * layout.piece_bytes;
    w.per_piece = 1;
    w.chunks = (layout.count + w.group - 1) / w.group;
  }
  w.stages = std::min(kWarp, ring.shared_bytes() / w.stage_bytes);
  const std::uint64_t all = std::uint64_t{w.chunks} * params.pages;
  if (all > 0x7FFFFFFF) {
    return invalid("a move of " + std::to_string(all) + " chunks: expected fewer than 2^31",
                   Reason::kOutOfRange);
  }
  w.chunks_in_all = static_cast<std::uint32_t>(all);
  w.layout = layout;
  const std::uint32_t shared = w.stages * w.stage_bytes;
  if (shared + kStaticShared > device.shared_bytes) {
    return invalid("a ring of " + std::to_string(shared) + " bytes: the device has " +
                       std::to_string(device.shared_bytes) + " of shared memory",
                   Reason::kOutOfRange);
  }
  const std::uint32_t ctas = std::min(ring.ctas, w.chunks_in_all);
  const auto s = static_cast<cudaStream_t>(stream);
  if (!bulk) {
    LEHR_TRY(allow_shared(move_copies_kernel, shared));
    return launch(move_copies_kernel, dim3(ctas), dim3(kWarp), shared, s, false, w);
  }
  const RingKernel kernel = groups == Groups::kGather    ? groups_kernel<true>(ring.open_stores)
                            : groups == Groups::kScatter ? groups_kernel<false>(ring.open_stores)
                                                         : ring_kernel(ring.open_stores);
  LEHR_TRY(allow_shared(kernel, shared));
  return launch(kernel, dim3(ctas), dim3(kWarp), shared, s, false, w, ring.keep_in_l2);
}

}  // namespace lehr::kernels
