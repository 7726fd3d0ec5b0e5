// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/attend_work.cuh"

/// Shared memory of the attend kernel, and what its warps tell each other through it.
///
/// A tile is four blocks of 16 tokens, each [K 16 rows][V 16 rows][scales]. Every block starts at a
/// multiple of 128 bytes: a bulk copy to any other place asks L2 for each line twice, which was
/// measured to cost a tenth of the bandwidth. Rows are whole multiples of 128 bytes too, so
/// lanes avoid bank conflicts by the order in which they load (attend_values.cuh).
namespace lehr::kernels::cuda {

/// Consumers of a form: as many as registers allow.
__host__ __device__ constexpr std::uint32_t consumer_warps(std::uint32_t row_tiles) {
  return row_tiles == 1 ? 8 : 4;
}
inline constexpr std::uint32_t kProducerWarps = 2;  ///< one cannot issue fast enough
/// Consumers, then producers, a scheduler and a merger.
__host__ __device__ constexpr std::uint32_t attend_threads(std::uint32_t row_tiles) {
  return 32 * (consumer_warps(row_tiles) + kProducerWarps + 2);
}
inline constexpr std::uint32_t kMaxAttendThreads = attend_threads(1);
inline constexpr std::uint32_t kMaxStages = 16;
inline constexpr std::uint32_t kMaxHostSlots = 8;
inline constexpr std::uint32_t kSegmentRing = 3;
inline constexpr std::uint32_t kCachedGroups = 512;
inline constexpr std::uint32_t kNowhere = 0x7FFFFFF0U;  ///< position of a block that is absent

/// What they cost is measured by leaving them out (tools/gpu/Makefile, bench_kernels_bare); never
/// otherwise. LEHR_ATTEND_BARE bit 0: no page sums; bit 1: sums in order of arrival.
#ifndef LEHR_ATTEND_BARE
#define LEHR_ATTEND_BARE 0
#endif
inline constexpr bool kPageSums = (LEHR_ATTEND_BARE & 1) == 0;
/// Every consumer takes fixed tiles of a segment, so that its sum has a fixed order; else whichever
/// comes next.
inline constexpr bool kFixedOrder = (LEHR_ATTEND_BARE & 2) == 0;

/// Which page formats a compiled form reads: one only, or any in each half of each page.
enum class PageForms { k16Bit, kE4m3, kMixed };

/// How K or V of a block is stored, as far as arithmetic cares.
enum class Half : std::uint32_t { k16Bit = 0, kE4m3 = 1, kInt8 = 2 };
__device__ __forceinline__ Half half_of(DType format) {
  if (format == DType::kE4m3) return Half::kE4m3;
  return format == DType::kInt8 ? Half::kInt8 : Half::k16Bit;
}

/// Where a block lies in shared memory and how its halves are stored, in one word.
struct BlockWord {
  std::uint32_t word;
  template <class Parts>
  static __device__ BlockWord of(std::uint32_t offset, const Parts& parts) {
    return {offset | static_cast<std::uint32_t>(parts.k) |
            static_cast<std::uint32_t>(parts.v) << 2};
  }
  __device__ std::uint32_t offset() const { return word & ~127U; }
  __device__ Half k() const { return static_cast<Half>(word & 3U); }
  __device__ Half v() const { return static_cast<Half>(word >> 2 & 3U); }
};

/// A slot for a block that came over a link, and the parity of its phase; 0 means none.
struct HostWord {
  std::uint32_t word;
  static __device__ HostWord of(std::uint32_t slot, std::uint32_t parity) {
    return {slot | parity << 8 | 1U << 16};
  }
  __device__ bool used() const { return word != 0; }
  __device__ std::uint32_t slot() const { return word & 255U; }
  __device__ std::uint32_t parity() const { return word >> 8 & 1U; }
};

/// What a consumer must know of a tile beside its bytes.
struct TileNote {
  BlockWord block[kTileBlocks];
  std::uint32_t
      position[kTileBlocks];   ///< of each block's first token; far past the end when absent
  HostWord host[kTileBlocks];  ///< the host slot that holds the block, if any
  std::uint64_t install[kTileBlocks];  ///< K's destination, or 0
  std::uint32_t tile;                  ///< running number in this CTA; written last
};

struct Control {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  std::uint64_t host_full[kMaxHostSlots], host_empty[kMaxHostSlots];
  std::uint64_t segment_full[kSegmentRing], segment_empty[kSegmentRing];
  std::uint64_t flush_full, flush_empty;
  TileNote notes[kMaxStages];
  Segment segments[kSegmentRing];
  std::uint32_t
      chunk_prefix[kMaxAttendThreads + 1];  ///< tiles before each thread's chunk of groups
  std::uint32_t warp_sums[kMaxAttendThreads / 32];
  std::uint32_t crew_word;             ///< from one thread of a crew to all others
  std::uint32_t pages[kCachedGroups];  ///< of the first groups' lists
  std::uint32_t next_tile[8];          ///< by block of query rows; where order is not fixed
};
inline constexpr std::uint32_t kControlBytes = (sizeof(Control) + 127) / 128 * 128;

/// Bytes of one block: a mixed one is never longer than a 16-bit one with its scales.
template <std::uint32_t kDim, PageForms kForms>
struct BlockLayout {
  static constexpr std::uint32_t element = kForms == PageForms::kE4m3 ? 1 : 2;
  static constexpr std::uint32_t scales = kForms == PageForms::kE4m3 ? 16 : 0;
  static constexpr std::uint32_t stride =
      (2 * kBlockTokens * kDim * element + scales + 127) / 128 * 128;
  static constexpr std::uint32_t tile = kTileBlocks * stride;
};

/// The parts of a block: its K, its V and the scales it needs, in a page of 1 << `shift` blocks.
template <std::uint32_t kDim, PageForms kForms>
struct BlockParts {
  Half k, v;

  __device__ static std::uint32_t bytes_of(Half half) {
    return kBlockTokens * kDim * (half == Half::k16Bit ? 2 : 1);
  }
  __device__ std::uint32_t k_scales() const {
    if (kForms == PageForms::k16Bit || k == Half::k16Bit) return 0;
    return k == Half::kE4m3 ? 16 : kDim * 2;
  }
  __device__ std::uint32_t v_scales() const {
    if (kForms != PageForms::kMixed || v == Half::k16Bit) return 0;
    if (v == Half::kE4m3) return k == Half::kE4m3 ? 0 : 16;  // two e4m3 halves share 16 bytes
    return kBlockTokens * (kDim / 32) * 2;
  }
  __device__ std::uint32_t bytes() const {
    return bytes_of(k) + bytes_of(v) + k_scales() + v_scales();
  }
  /// Calls part(offset in the block, offset in the page, bytes) for block `sub`.
  template <class Part>
  __device__ void each(std::uint32_t shift, std::uint32_t sub, Part&& part) const {
    if (shift == 0) {  // all lie behind each other
      part(0U, 0U, bytes());
      return;
    }
    const std::uint32_t blocks = 1U << shift, kb = bytes_of(k), vb = bytes_of(v);
    const std::uint32_t ks = k_scales(), vs = v_scales(), scales = blocks * (kb + vb);
    part(0U, sub * kb, kb);
    part(kb, blocks * kb + sub * vb, vb);
    // int8 K has scales for every 32 tokens, int8 V for every token; e4m3 has them for the page.
    const std::uint32_t k_groups = k == Half::kInt8 ? blocks / 2 : 1;
    if (ks != 0) part(kb + vb, scales + (k == Half::kInt8 ? sub / 2 * ks : 0), ks);
    if (vs != 0) part(kb + vb + ks, scales + k_groups * ks + (v == Half::kInt8 ? sub * vs : 0), vs);
  }
};

/// What consumers leave for the merger.
__host__ __device__ constexpr std::uint32_t flush_bytes(std::uint32_t dim, std::uint32_t row_tiles,
                                                        std::uint32_t rows) {
  const std::uint32_t rows_a_warp = rows < 8 * row_tiles ? rows : 8 * row_tiles;
  return consumer_warps(row_tiles) * rows_a_warp * (dim + 2) * 4;
}
/// Shared memory before the ring of tiles, which the host slots follow.
__host__ __device__ constexpr std::uint32_t ring_offset(std::uint32_t dim, std::uint32_t row_tiles,
                                                        std::uint32_t rows) {
  return (kControlBytes + flush_bytes(dim, row_tiles, rows) + 127) / 128 * 128;
}

/// One compiled form and what all its warps share. `smem` is all dynamic shared memory.
template <class T_, std::uint32_t kDim_, std::uint32_t kRowTiles_, PageForms kForms_>
struct Frame {
  using T = T_;
  static constexpr std::uint32_t kDim = kDim_, kRowTiles = kRowTiles_;
  static constexpr PageForms kForms = kForms_;
  static constexpr std::uint32_t kConsumerWarps = consumer_warps(kRowTiles_);
  static constexpr std::uint32_t kQuads = kDim_ / 4;
  using Layout = BlockLayout<kDim_, kForms_>;
  using Parts = BlockParts<kDim_, kForms_>;

  const AttendArgs& a;
  unsigned char* smem;
  Control& control;
  float* flush;
  std::uint32_t ring;  ///< offset in shared memory
  std::uint32_t lane, warp;

  __device__ Frame(const AttendArgs& args, unsigned char* memory)
      : a(args),
        smem(memory),
        control(*reinterpret_cast<Control*>(memory)),
        flush(reinterpret_cast<float*>(memory + kControlBytes)),
        ring(ring_offset(kDim_, kRowTiles_, args.rows)),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {}

  __device__ std::uint32_t at(const std::uint64_t& barrier) const {
    return shared_address(&barrier);
  }
  __device__ std::uint32_t stage_base(std::uint32_t stage) const {
    return ring + stage * Layout::tile;
  }
  __device__ std::uint32_t host_base(std::uint32_t slot) const {
    return stage_base(a.stages.value) + slot * Layout::stride;
  }

  /// A place in a ring that is used in order: the running number of the use, where it lies, and the
  /// parity of its phase.
  struct RingPlace {
    std::uint32_t number, place, parity;
  };
  __device__ static RingPlace ring_place(const Divisor& size, std::uint32_t number) {
    const std::uint32_t round = size.quotient(number);
    return {number, number - round * size.value, round & 1};
  }

  __device__ std::uint32_t row_blocks() const { return kConsumerWarps / a.warps_of_row_block; }
  __device__ std::uint32_t rows_a_warp() const {
    return a.rows < 8 * kRowTiles ? a.rows : 8 * kRowTiles;
  }
  __device__ float* flushed_values(std::uint32_t w, std::uint32_t row) const {
    return flush + (w * rows_a_warp() + row) * kDim;
  }
  __device__ float* flushed_pair(std::uint32_t w, std::uint32_t row) const {
    return flush + kConsumerWarps * rows_a_warp() * kDim + (w * rows_a_warp() + row) * 2;
  }

  __device__ std::uint32_t pages_of(std::uint32_t group) const {
    return group < kCachedGroups ? control.pages[group] : list_pages(a, group);
  }

  /// Row of Q and of the output that belongs to a row of a group.
  __device__ std::size_t q_row(std::uint32_t group, std::uint32_t row) const {
    const std::uint32_t sequence = a.sequence_of(group);
    const std::uint32_t query = a.ratio.quotient(row);
    const std::uint32_t head =
        (group - sequence * a.kv_heads.value) * a.ratio.value + row - query * a.ratio.value;
    return (std::size_t{sequence} * a.shape.q_len + query) * a.shape.q_heads + head;
  }
  __device__ T* out_row(std::uint32_t group, std::uint32_t row) const {
    return static_cast<T*>(a.p.out) + q_row(group, row) * kDim;
  }

  __device__ void init_barriers() const {
    const std::uint32_t i = threadIdx.x;
    if (i < a.stages.value) {
      barrier_init(at(control.full[i]), kTileBlocks + (kBulkCopy ? 0 : 32));
      barrier_init(at(control.empty[i]), row_blocks());
      control.notes[i].tile = ~0U;
    }
    if (i < a.host_slots) {
      barrier_init(at(control.host_full[i]), 1);
      barrier_init(at(control.host_empty[i]), row_blocks());
    }
    if (i < kSegmentRing) {
      barrier_init(at(control.segment_full[i]), 1);
      barrier_init(at(control.segment_empty[i]), kConsumerWarps + kProducerWarps + 1);
    }
    if (i == 0) {
      barrier_init(at(control.flush_full), 32 * kConsumerWarps);
      barrier_init(at(control.flush_empty), 32);
    }
    if (!kFixedOrder && i < 8) control.next_tile[i] = 0;
    if (i < kMaxStages) barrier_init_fence();
  }

  /// Every warp but the scheduler reads every segment once, in order.
  __device__ Segment pop_segment(std::uint32_t number) const {
    const std::uint32_t slot = number % kSegmentRing;
    barrier_wait(at(control.segment_full[slot]), (number / kSegmentRing) & 1);
    const Segment segment = control.segments[slot];
    __syncwarp();
    if (lane == 0) barrier_arrive(at(control.segment_empty[slot]));
    return segment;
  }
};

}  // namespace lehr::kernels::cuda
