// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/attend_work.cuh"
#include "kernels/cuda/detail/mma.cuh"

/// Split-KV paged decode attention. A CTA is a scheduler warp that announces segments of work, two
/// producer warps that fill a ring of tiles in shared memory (one alone cannot issue fast enough),
/// consumer warps that each take whole tiles, and a merger warp that adds up what they leave of a
/// segment while they go on with the next. See kernels/README.md.
///
/// Shared memory banks decide the layout. A tile is four blocks of 16 tokens, each [K 16 rows][V 16
/// rows][pad], and block b starts 32 b bytes off a multiple of 128, so that loads of different
/// blocks hit different banks although rows are whole multiples of 128 bytes. The matrix products
/// then take their rows from several blocks at once:
///   S = K Q^T   row g of m-tile i: token 4i + (g & 1) (+2 for row g + 8) of block (g >> 1) ^ ((g &
///   1) << 1) O = V^T P^T slots 2c, 2c+1 of k-step i: the tokens of rows 2c, 2c+1 above, that is of
///   blocks c and c ^ 2
/// with g = lane / 4, c = lane % 4. A lane's scores all belong to one block, so page sums and page
/// scales cost almost nothing; the transposition between the two products is movmatrix.
namespace lehr::kernels::cuda {

/// Consumers of a form: as many as registers allow.
__host__ __device__ constexpr std::uint32_t consumer_warps(std::uint32_t row_tiles) {
  return row_tiles == 1 ? 8 : 4;
}
inline constexpr std::uint32_t kProducerWarps = 2;
__host__ __device__ constexpr std::uint32_t attend_threads(std::uint32_t row_tiles) {
  return 32 * (consumer_warps(row_tiles) + kProducerWarps + 2);
}
inline constexpr std::uint32_t kMaxAttendThreads = attend_threads(1);
inline constexpr std::uint32_t kMaxStages = 16;
inline constexpr std::uint32_t kSegmentRing = 3;
inline constexpr std::uint32_t kCachedGroups = 512;
inline constexpr std::uint32_t kBankStep = 32;
inline constexpr std::uint32_t kNowhere = 0x7FFFFFF0U;  ///< position of a block that is absent

enum class PageForms { k16Bit, kE4m3, kMixed };

/// What a consumer must know of a tile beside its bytes.
struct TileNote {
  std::uint32_t base[kTileBlocks];  ///< of each block in shared memory; bit 0: e4m3
  std::uint32_t
      position[kTileBlocks];  ///< of each block's first token; far past the end when absent
  std::uint64_t install[kTileBlocks];  ///< K's destination, or 0
  std::uint32_t tile;                  ///< running number in this CTA; written last
};

struct Control {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  std::uint64_t segment_full[kSegmentRing], segment_empty[kSegmentRing];
  std::uint64_t flush_full, flush_empty;
  TileNote notes[kMaxStages];
  Segment segments[kSegmentRing];
  std::uint32_t
      chunk_prefix[kMaxAttendThreads + 1];  ///< tiles before each thread's chunk of groups
  std::uint32_t warp_sums[kMaxAttendThreads / 32];
  std::uint32_t pages[kCachedGroups];  ///< of the first groups' lists
};

template <std::uint32_t kDim, PageForms kForms>
struct BlockLayout {
  static constexpr std::uint32_t element = kForms == PageForms::kE4m3 ? 1 : 2;
  static constexpr std::uint32_t half = kBlockTokens * kDim * element;  ///< K, or V
  static constexpr std::uint32_t stride = 2 * half + kBankStep;
  static constexpr std::uint32_t tile = kTileBlocks * stride;
};

/// Shared memory beside the ring.
__host__ __device__ constexpr std::uint32_t flush_bytes(std::uint32_t dim, std::uint32_t row_tiles,
                                                        std::uint32_t rows) {
  const std::uint32_t rows_a_warp = rows < 8 * row_tiles ? rows : 8 * row_tiles;
  return consumer_warps(row_tiles) * rows_a_warp * (dim + 2) * 4;
}
inline constexpr std::uint32_t kControlBytes = (sizeof(Control) + 127) / 128 * 128;

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
struct Attend {
  using Layout = BlockLayout<kDim, kForms>;
  using Math = Half16<T>;
  static constexpr std::uint32_t kSteps =
      kDim / 32;  ///< 16-byte pieces of a 16-bit K row a lane reads
  static constexpr std::uint32_t kDimTiles = kDim / 16;
  static constexpr std::uint32_t kConsumerWarps = consumer_warps(kRowTiles);
  static constexpr bool kScaled = kForms != PageForms::k16Bit;

  const AttendArgs& a;
  unsigned char* smem;
  Control& control;
  float* flush;
  std::uint32_t ring;  ///< offset in shared memory
  std::uint32_t lane, warp;

  __device__ Attend(const AttendArgs& args, unsigned char* memory)
      : a(args),
        smem(memory),
        control(*reinterpret_cast<Control*>(memory)),
        flush(reinterpret_cast<float*>(memory + kControlBytes)),
        ring((kControlBytes + flush_bytes(kDim, kRowTiles, args.rows) + 127) / 128 * 128),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {}

  __device__ std::uint32_t stage_base(std::uint32_t stage) const {
    return ring + stage * ((Layout::tile + 127) / 128 * 128);
  }
  __device__ std::uint32_t at(const std::uint64_t& barrier) const {
    return shared_address(&barrier);
  }

  // ------------------------------------------------------------------ set-up

  __device__ void init_barriers(std::uint32_t row_blocks) {
    const std::uint32_t i = threadIdx.x;
    if (i < a.stages.value) {
      barrier_init(at(control.full[i]), kTileBlocks + (kBulkCopy ? 0 : 32));
      barrier_init(at(control.empty[i]), row_blocks);
      control.notes[i].tile = ~0U;
    }
    if (i < kSegmentRing) {
      barrier_init(at(control.segment_full[i]), 1);
      barrier_init(at(control.segment_empty[i]), kConsumerWarps + kProducerWarps + 1);
    }
    if (i == 0) {
      barrier_init(at(control.flush_full), 32 * kConsumerWarps);
      barrier_init(at(control.flush_empty), 32);
    }
    if (i < kMaxStages) barrier_init_fence();
  }

  __device__ std::uint32_t pages_of(std::uint32_t group) const {
    return group < kCachedGroups ? control.pages[group] : list_pages(a, group);
  }

  __device__ std::uint32_t chunk() const { return (a.groups + blockDim.x - 1) / blockDim.x; }

  /// Tiles before each thread's chunk of groups; groups with nothing to read get their zeros here.
  __device__ std::uint32_t scan_groups() {
    const auto groups = a.groups;
    const std::uint32_t first = threadIdx.x * chunk();
    std::uint32_t sum = 0;
    for (std::uint32_t g = first; g < first + chunk() && g < groups; ++g) {
      const std::uint32_t pages = list_pages(a, g);
      if (g < kCachedGroups) control.pages[g] = pages;
      const std::uint32_t tiles = tiles_of(a, pages);
      if (tiles == 0 && g % gridDim.x == blockIdx.x) write_nothing(g);
      sum += tiles;
    }
    std::uint32_t before = sum;
    for (std::uint32_t d = 1; d < 32; d *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0U, before, d);
      if (lane >= d) before += other;
    }
    if (lane == 31) control.warp_sums[warp] = before;
    __syncthreads();
    std::uint32_t base = 0;
    for (std::uint32_t w = 0; w < warp; ++w) base += control.warp_sums[w];
    control.chunk_prefix[threadIdx.x + 1] = base + before;
    if (threadIdx.x == 0) control.chunk_prefix[0] = 0;
    __syncthreads();
    return control.chunk_prefix[blockDim.x];
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

  __device__ void write_nothing(std::uint32_t group) const {
    for (std::uint32_t row = 0; row < a.rows; ++row) {
      auto* out = reinterpret_cast<uint4*>(out_row(group, row));
      for (std::uint32_t i = 0; i < kDim / 8; ++i) out[i] = make_uint4(0, 0, 0, 0);
      if (a.p.totals != nullptr) {
        a.p.totals[std::size_t{group} * a.rows + row] = {-INFINITY, 0.0F};
      }
    }
  }

  // ------------------------------------------------------------------ producers

  /// A place on the line of tiles: tile `first` of `group`, whose list has `tiles` tiles and
  /// `pages` pages.
  struct Place {
    std::uint32_t group, first, pages, tiles;
  };

  /// The whole warp looks for the group of a tile.
  __device__ Place find(std::uint32_t tile) const {
    std::uint32_t owner = 0;
    for (std::uint32_t base = 0; base < blockDim.x; base += 32) {
      // The last chunk that starts at or before the tile and is not empty holds it.
      const std::uint32_t starts = __ballot_sync(~0U, control.chunk_prefix[base + lane] <= tile);
      if (starts != 0)
        owner = base + 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(starts)));
    }
    std::uint32_t before = control.chunk_prefix[owner];
    for (std::uint32_t g0 = owner * chunk();; g0 += 32) {
      const std::uint32_t g = g0 + lane;
      const std::uint32_t pages = g < a.groups ? pages_of(g) : 0;
      const std::uint32_t tiles = tiles_of(a, pages);
      std::uint32_t end = tiles;
      for (std::uint32_t d = 1; d < 32; d *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0U, end, d);
        if (lane >= d) end += other;
      }
      const std::uint32_t past = __ballot_sync(~0U, before + end > tile);
      if (past != 0) {
        const int hit = __ffs(static_cast<int>(past)) - 1;
        Place place;
        place.group = g0 + static_cast<std::uint32_t>(hit);
        place.pages = __shfl_sync(~0U, pages, hit);
        place.tiles = __shfl_sync(~0U, tiles, hit);
        place.first = tile - (before + __shfl_sync(~0U, end, hit) - place.tiles);
        return place;
      }
      before += __shfl_sync(~0U, end, 31);
      if (g0 >= a.groups) return {0, 0, 0, 0};  // not reached: the tile lies on the line
    }
  }

  __device__ void next_group(Place& place) const {
    do {
      ++place.group;
      place.pages = pages_of(place.group);
      place.tiles = tiles_of(a, place.pages);
    } while (place.tiles == 0);
    place.first = 0;
  }

  /// One list position's page and entry.
  struct Listed {
    std::uint32_t page;
    PageEntry entry;
  };
  __device__ Listed listed(const Place& place, std::uint32_t i) const {
    Listed x{i, kAbsentPage};
    if (i >= place.pages) return x;
    if (a.p.selection != nullptr) {
      x.page = __ldg(a.p.selection + std::size_t{place.group} * a.p.selection_pitch + i);
    }
    // Read past L1: the table changes between launches, and one launch reads each word once.
    if (x.page < a.shape.max_pages) {
      x.entry = __ldcg(reinterpret_cast<const unsigned long long*>(a.p.table) +
                       std::size_t{place.group} * a.shape.max_pages + x.page);
    }
    return x;
  }

  __device__ bool readable(PageEntry entry) const {
    if (entry == kAbsentPage) return false;
    const DType format = entry_format(entry);
    if (kForms == PageForms::k16Bit) return format == a.shape.dtype;
    if (kForms == PageForms::kE4m3) return format == DType::kE4m3;
    return format == a.shape.dtype || format == DType::kE4m3;
  }

  /// Bytes of K (or V) of a block as it is stored.
  __device__ std::uint32_t half_bytes(PageEntry entry) const {
    if (kForms == PageForms::k16Bit) return Layout::half;
    return entry_format(entry) == DType::kE4m3 ? kBlockTokens * kDim : kBlockTokens * kDim * 2;
  }

  __device__ std::uint32_t block_bytes(PageEntry entry) const {
    const bool scaled = kScaled && entry_format(entry) == DType::kE4m3;
    return 2 * half_bytes(entry) + (scaled ? 16U : 0U);
  }

  /// Copies block `sub` of a page to `to`: one lane on sm_90, all lanes on sm_80.
  __device__ void copy_block(std::uint32_t to, PageEntry entry, std::uint32_t sub,
                             std::uint32_t barrier, std::uint64_t policy) const {
    const std::uint32_t half = half_bytes(entry);
    const std::uint32_t blocks = 1U << (a.page_shift - 4);
    const std::uint64_t from = entry_address(entry);
    const std::uint32_t target = shared_address(smem) + to;
    const auto copy = [&](std::uint32_t offset, std::uint64_t source, std::uint32_t bytes) {
      if constexpr (kBulkCopy) {
        bulk_load(target + offset, source, bytes, barrier, policy);
      } else {
        warp_load(target + offset, source, bytes, lane);
      }
    };
    if (blocks == 1) {  // K, V and scales lie behind each other
      copy(0, from, block_bytes(entry));
      return;
    }
    copy(0, from + std::uint64_t{sub} * half, half);
    copy(half, from + std::uint64_t{blocks + sub} * half, half);
    if (block_bytes(entry) != 2 * half) copy(2 * half, from + std::uint64_t{2} * blocks * half, 16);
  }

  /// A place in the ring of tiles: the tile's running number, its stage, and the parity of the
  /// stage's phase.
  struct RingPlace {
    std::uint32_t tile, stage, parity;
  };
  __device__ RingPlace ring_place(std::uint32_t tile) const {
    const std::uint32_t round = a.stages.quotient(tile);
    return {tile, tile - round * a.stages.value, round & 1};
  }

  /// Fills one tile of the ring. `batch` holds one list position a lane, `in_batch` is the tile's
  /// first.
  __device__ void fill_tile(const Place& place, const Listed& batch, std::uint32_t in_batch,
                            std::uint32_t list_position, const RingPlace& ring_at,
                            std::uint64_t policy) {
    const std::uint32_t block_shift = a.page_shift - 4;
    const std::uint32_t block = lane % kTileBlocks;
    const std::uint32_t source = in_batch + (block >> block_shift);
    const PageEntry entry = __shfl_sync(~0U, batch.entry, static_cast<int>(source));
    const std::uint32_t page = __shfl_sync(~0U, batch.page, static_cast<int>(source));
    const std::uint32_t sub = block & ((1U << block_shift) - 1);
    const bool listed_here = list_position + (block >> block_shift) < place.pages;
    const bool present = listed_here && readable(entry);
    const auto [number, stage, parity] = ring_at;

    barrier_wait(at(control.empty[stage]), parity ^ 1);
    TileNote& note = control.notes[stage];
    const std::uint32_t base = stage_base(stage) + block * Layout::stride;
    if (lane < kTileBlocks) {
      const bool e4m3 = kScaled && entry_format(entry) == DType::kE4m3;
      note.base[block] = base | (e4m3 ? 1U : 0U);
      note.position[block] = present ? (page << a.page_shift) + sub * kBlockTokens : kNowhere;
      std::uint64_t install = 0;
      if (present && entry_over_link(entry) && a.p.installs != nullptr) {
        install = a.p.installs[std::size_t{place.group} * a.shape.max_pages + page];
        if (install != 0) install += std::uint64_t{sub} * half_bytes(entry);
      }
      note.install[block] = install;
      if (listed_here && !present && sub == 0 && a.p.absent != nullptr) atomicAdd(a.p.absent, 1U);
    }
    const bool mine = lane < kTileBlocks && present;
    const std::uint32_t bytes = __reduce_add_sync(~0U, mine ? block_bytes(entry) : 0U);
    const std::uint32_t barrier = at(control.full[stage]);
    if (lane == 0) {
      begin_fill(barrier, bytes);
      atomicExch(&note.tile, number);
    } else if (lane < kTileBlocks) {
      barrier_arrive(barrier);  // each lane for its part of the note
    }
    __syncwarp();
    if constexpr (kBulkCopy) {
      if (mine) copy_block(base, entry, sub, barrier, policy);
    } else {
#pragma unroll 1
      for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
        const bool copied = __shfl_sync(~0U, mine, static_cast<int>(b));
        const std::uint32_t to = __shfl_sync(~0U, base, static_cast<int>(b));
        const PageEntry from = __shfl_sync(~0U, entry, static_cast<int>(b));
        if (copied) copy_block(to, from, b & ((1U << block_shift) - 1), barrier, policy);
      }
      end_fill_warp(barrier);
    }
  }

  /// Announces the segments of this CTA's piece.
  __device__ void schedule(const WorkCut& cut) {
    std::uint32_t number = 0;
    if (blockIdx.x < cut.pieces) {
      std::uint32_t line = cut.begin(blockIdx.x);
      const std::uint32_t line_end = cut.begin(blockIdx.x + 1);
      Place place = find(line);
      while (true) {
        const std::uint32_t left = place.tiles - place.first;
        const std::uint32_t tiles = left < line_end - line ? left : line_end - line;
        push_segment(cut, place, tiles, line, number++);
        line += tiles;
        if (line >= line_end) break;
        next_group(place);
      }
    }
    push_end(number);
  }

  /// Each producer fills every second stage.
  __device__ void produce(std::uint32_t which) {
    const std::uint64_t policy = evict_first_policy();
    const std::uint32_t pages_a_tile = a.pages_a_tile();
    std::uint32_t tile = 0, number = 0;
    Segment segment = pop_segment(number);
    Place place = place_of(segment);
    Listed next = listed(place, segment.first * pages_a_tile + lane);
    while (segment.tiles != 0) {
      std::uint32_t i = segment.first * pages_a_tile;
      const std::uint32_t end = i + segment.tiles * pages_a_tile;
      Segment following{};
      for (; i < end; i += 32) {
        const Listed batch = next;
        const Place of_batch = place;
        if (i + 32 < end) {
          next = listed(place, i + 32 + lane);
        } else {  // look up the next segment's first pages before they are needed
          following = pop_segment(++number);
          place = place_of(following);
          next = listed(place, following.first * pages_a_tile + lane);
        }
        for (std::uint32_t j = 0; j < 32 && i + j < end; j += pages_a_tile, ++tile) {
          const RingPlace ring_at = ring_place(tile);
          // By stage, so that a stage's phases are seen by one producer, each in its turn.
          if (ring_at.stage % kProducerWarps == which)
            fill_tile(of_batch, batch, j, i + j, ring_at, policy);
        }
      }
      segment = following;
    }
  }

  __device__ Place place_of(const Segment& segment) const {
    return {segment.group, segment.first, segment.tiles != 0 ? pages_of(segment.group) : 0, 0};
  }

  /// Every warp but the scheduler reads every segment once, in order.
  __device__ Segment pop_segment(std::uint32_t number) {
    const std::uint32_t slot = number % kSegmentRing;
    barrier_wait(at(control.segment_full[slot]), (number / kSegmentRing) & 1);
    const Segment segment = control.segments[slot];
    __syncwarp();
    if (lane == 0) barrier_arrive(at(control.segment_empty[slot]));
    return segment;
  }

  __device__ void push_segment(const WorkCut& cut, const Place& place, std::uint32_t tiles,
                               std::uint32_t line, std::uint32_t number) {
    const std::uint32_t place_in_ring = number % kSegmentRing;
    barrier_wait(at(control.segment_empty[place_in_ring]), (number / kSegmentRing + 1) & 1);
    if (lane == 0) {
      const std::uint32_t start = line - place.first;
      const std::uint32_t first_piece = cut.piece_of(start);
      const std::uint32_t last_piece = cut.piece_of(start + place.tiles - 1);
      control.segments[place_in_ring] = {place.group,
                                         place.first,
                                         tiles,
                                         blockIdx.x + place.group,
                                         first_piece + place.group,
                                         last_piece - first_piece + 1};
      barrier_arrive(at(control.segment_full[place_in_ring]));
    }
    __syncwarp();
  }

  __device__ void push_end(std::uint32_t number) {
    const std::uint32_t place_in_ring = number % kSegmentRing;
    barrier_wait(at(control.segment_empty[place_in_ring]), (number / kSegmentRing + 1) & 1);
    if (lane == 0) {
      control.segments[place_in_ring].tiles = 0;
      barrier_arrive(at(control.segment_full[place_in_ring]));
    }
    __syncwarp();
  }

  // ------------------------------------------------------------------ consumers

  struct State {
    float o[kRowTiles][kDimTiles][4];
    float m[kRowTiles][2], d[kRowTiles][2];
  };

  __device__ static void reset(State& s) {
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      for (std::uint32_t t = 0; t < kDimTiles; ++t) {
        for (float& x : s.o[n][t]) x = 0.0F;
      }
      for (std::uint32_t e = 0; e < 2; ++e) {
        s.m[n][e] = -INFINITY;
        s.d[n][e] = 0.0F;
      }
    }
  }

  /// Query fragments: lane (g, c) holds 8 channels at 32 s + 8 c of row g, for each s.
  __device__ void load_queries(std::uint32_t group, std::uint32_t first_row,
                               uint4 (&q)[kRowTiles][kSteps]) const {
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      const std::uint32_t row = first_row + 8 * n + lane / 4;
      const auto* from =
          reinterpret_cast<const uint4*>(static_cast<const T*>(a.p.q) + q_row(group, row) * kDim);
      for (std::uint32_t s = 0; s < kSteps; ++s) {
        q[n][s] = row < a.rows ? __ldg(from + 4 * s + lane % 4) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  /// Eight stored values as 16-bit ones.
  __device__ static uint4 widen(uint2 x) {
    return make_uint4(Math::from_e4m3x2(x.x & 0xFFFFU), Math::from_e4m3x2(x.x >> 16),
                      Math::from_e4m3x2(x.y & 0xFFFFU), Math::from_e4m3x2(x.y >> 16));
  }

  __device__ const unsigned char* at(std::uint32_t offset) const { return smem + offset; }

  /// Channels 8 * index .. + 7 of a row that starts at `row` when rows are 16-bit wide.
  __device__ uint4 eight(std::uint32_t block, std::uint32_t half, std::uint32_t token,
                         std::uint32_t index) const {
    const bool e4m3 =
        kForms == PageForms::kE4m3 || (kForms == PageForms::kMixed && (block & 1U) != 0);
    const std::uint32_t base = block & ~1U;
    if (e4m3) {
      const std::uint32_t offset = base + half * kBlockTokens * kDim + token * kDim + index * 8;
      return widen(*reinterpret_cast<const uint2*>(at(offset)));
    }
    const std::uint32_t offset = base + (half * kBlockTokens + token) * kDim * 2 + index * 16;
    return *reinterpret_cast<const uint4*>(at(offset));
  }

  __device__ float2 scales_of(std::uint32_t block) const {
    const bool e4m3 =
        kForms == PageForms::kE4m3 || (kForms == PageForms::kMixed && (block & 1U) != 0);
    if (!e4m3) return make_float2(1.0F, 1.0F);
    return *reinterpret_cast<const float2*>(at((block & ~1U) + 2 * kBlockTokens * kDim));
  }

  /// One k-step of O += V^T P^T: two tokens of block c and two of block c ^ 2.
  template <bool kMasked>
  __device__ void add_values(State& s, std::uint32_t i, std::uint32_t near, std::uint32_t far,
                             std::uint32_t near_tokens, std::uint32_t far_tokens,
                             const std::uint32_t (&p)[kRowTiles][4][2]) const {
    constexpr std::uint32_t kChunks = kDim / 64;
    constexpr std::uint32_t kPasses = kChunks > 1 ? kChunks / 2 : 1;
    const std::uint32_t g = lane / 4;
#pragma unroll
    for (std::uint32_t pass = 0; pass < kPasses; ++pass) {
      // Elements of rows g and g + 8 of the m-tiles; for head_dim 64 both come from one chunk.
      std::uint32_t low[2][8], high[2][8];
#pragma unroll
      for (std::uint32_t half = 0; half < (kChunks > 1 ? 2 : 1); ++half) {
        const std::uint32_t index = 8 * (pass + half * kPasses) + g;
        uint4 v0 = eight(near, 1, 4 * i, index), v1 = eight(far, 1, 4 * i + 1, index);
        uint4 v2 = eight(near, 1, 4 * i + 2, index), v3 = eight(far, 1, 4 * i + 3, index);
        if (kMasked) {  // weights of these are 0, but 0 times what lies there may be NaN
          const uint4 zero = make_uint4(0, 0, 0, 0);
          if (4 * i >= near_tokens) v0 = zero;
          if (4 * i + 1 >= far_tokens) v1 = zero;
          if (4 * i + 2 >= near_tokens) v2 = zero;
          if (4 * i + 3 >= far_tokens) v3 = zero;
        }
        const std::uint32_t x0[4] = {v0.x, v0.y, v0.z, v0.w}, x1[4] = {v1.x, v1.y, v1.z, v1.w};
        const std::uint32_t x2[4] = {v2.x, v2.y, v2.z, v2.w}, x3[4] = {v3.x, v3.y, v3.z, v3.w};
#pragma unroll
        for (std::uint32_t w = 0; w < 4; ++w) {
          low[half][2 * w] = __byte_perm(x0[w], x1[w], 0x5410);
          low[half][2 * w + 1] = __byte_perm(x0[w], x1[w], 0x7632);
          high[half][2 * w] = __byte_perm(x2[w], x3[w], 0x5410);
          high[half][2 * w + 1] = __byte_perm(x2[w], x3[w], 0x7632);
        }
      }
#pragma unroll
      for (std::uint32_t t = 0; t < (kChunks > 1 ? 8 : 4); ++t) {
        const std::uint32_t upper_half = kChunks > 1 ? 1 : 0;
        const std::uint32_t upper = kChunks > 1 ? t : t + 4;
#pragma unroll
        for (std::uint32_t n = 0; n < kRowTiles; ++n) {
          Math::mma(s.o[n][8 * pass + t], low[0][t], low[upper_half][upper], high[0][t],
                    high[upper_half][upper], p[n][i][0], p[n][i][1]);
        }
      }
    }
  }

  struct Scores {
    float x[kRowTiles][4][4];  ///< [row tile][m-tile][row half * 2 + column]
  };

  __device__ void dot_keys(std::uint32_t block, const uint4 (&q)[kRowTiles][kSteps],
                           Scores& scores) const {
    const std::uint32_t g = lane / 4, c = lane % 4;
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        for (float& x : scores.x[n][i]) x = 0.0F;
      }
    }
    // Steps outside, so that four chains of products run side by side.
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const uint4 upper = eight(block, 0, 4 * i + (g & 1), 4 * s + c);
        const uint4 lower = eight(block, 0, 4 * i + 2 + (g & 1), 4 * s + c);
#pragma unroll
        for (std::uint32_t n = 0; n < kRowTiles; ++n) {
          Math::mma(scores.x[n][i], upper.x, lower.x, upper.y, lower.y, q[n][s].x, q[n][s].y);
          Math::mma(scores.x[n][i], upper.z, lower.z, upper.w, lower.w, q[n][s].z, q[n][s].w);
        }
      }
    }
  }

  /// One past the last token that each of the lane's query columns sees.
  struct Horizon {
    int end[kRowTiles][2];
  };
  __device__ Horizon horizon(std::uint32_t length, std::uint32_t first_row) const {
    Horizon h;
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      for (std::uint32_t e = 0; e < 2; ++e) {
        const std::uint32_t query = a.ratio.quotient(first_row + 8 * n + 2 * (lane % 4) + e);
        // Signed: a query may stand before the start of a short sequence.
        h.end[n][e] = static_cast<int>(length - a.shape.q_len + query + 1);
      }
    }
    return h;
  }

  /// Scaled logits in log2 units, -inf where a query must not look.
  template <bool kMasked>
  __device__ void to_logits(Scores& scores, float scale, float cap, float shift,
                            std::uint32_t position, const Horizon& horizon) const {
    constexpr float kLog2e = 1.4426950408889634F;
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k) {
        float& x = scores.x[n][k / 4][k % 4];
        if (cap > 0) {
          x = fmaf(cap * kLog2e, tanhf(x * scale / cap), shift);
        } else {
          x = fmaf(x, scale * kLog2e, shift);
        }
        if (kMasked) {
          const auto seen =
              static_cast<int>(position + 4 * (k / 4) + 2 * (k % 4 / 2) + ((lane / 4) & 1));
          const int end = horizon.end[n][k % 2];
          const int from = a.p.window == 0 ? 0 : end - static_cast<int>(a.p.window);
          if (seen >= end || seen < from) x = -INFINITY;
        }
      }
    }
  }

  __device__ void write_pairs(const float (&m)[2], const float (&sum)[2], std::uint32_t first_row,
                              std::size_t list_position, std::uint32_t pages) const {
    const std::uint32_t g = lane / 4, c = lane % 4;
    const std::uint32_t block_shift = a.page_shift - 4;
    const std::uint32_t block = (g >> 1) ^ ((g & 1) << 1);
    const std::size_t page = list_position + (block >> block_shift);
    // One lane a page and pair of rows: even rows of the first block hold the sum of their page.
    if ((g & 1) != 0 || (block & ((1U << block_shift) - 1)) != 0 || page >= pages) return;
    const std::uint32_t row = first_row + 2 * c;
    const std::uint32_t rows = a.rows;
    if (row >= rows) return;
    const std::size_t pitch = a.p.selection != nullptr ? a.p.selection_pitch : a.shape.max_pages;
    SoftmaxPair* to = a.p.pairs + (pair_group * pitch + page) * rows + row;
    if (row + 1 < rows && rows % 2 == 0) {
      *reinterpret_cast<float4*>(to) = make_float4(m[0], sum[0], m[1], sum[1]);
    } else {
      to[0] = {m[0], sum[0]};
      if (row + 1 < rows) to[1] = {m[1], sum[1]};
    }
  }
  std::size_t pair_group = 0;

  template <bool kMasked>
  __device__ void tile(State& s, const TileNote& note, const uint4 (&q)[kRowTiles][kSteps],
                       std::uint32_t length, const Horizon& seen, std::uint32_t first_row,
                       float scale, std::size_t list_position, std::uint32_t pages) {
    const std::uint32_t g = lane / 4, c = lane % 4;
    const std::uint32_t own = (g >> 1) ^ ((g & 1) << 1);
    const std::uint32_t key_block = note.base[own];
    float2 scales = make_float2(1.0F, 1.0F);
    // An absent block's bytes are whatever was there before.
    if (kScaled && !(kMasked && note.position[own] >= kNowhere)) scales = scales_of(key_block);
    const float shift = kScaled ? __log2f(scales.y) : 0.0F;  // V's scale rides on the weights

    Scores scores;
    dot_keys(key_block, q, scores);
    to_logits<kMasked>(scores, scale * scales.x, a.p.soft_cap, shift, note.position[own], seen);

    std::uint32_t p[kRowTiles][4][2];
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0F, 0.0F}, reference[2];
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k)
        top[k % 2] = fmaxf(top[k % 2], scores.x[n][k / 4][k % 4]);
      bool moved = false;
#pragma unroll
      for (std::uint32_t e = 0; e < 2; ++e) {
        top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 20));
        top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 8));
        top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 16));
        top[e] = fmaxf(top[e], s.m[n][e]);
        moved = moved || top[e] != s.m[n][e];
        reference[e] = top[e] == -INFINITY ? 0.0F : top[e];
      }
      if (__any_sync(~0U, moved)) {
        const float fade[2] = {exp2_fast(s.m[n][0] - reference[0]),
                               exp2_fast(s.m[n][1] - reference[1])};
#pragma unroll
        for (std::uint32_t t = 0; t < kDimTiles; ++t) {
#pragma unroll
          for (std::uint32_t k = 0; k < 4; ++k) s.o[n][t][k] *= fade[k % 2];
        }
        for (std::uint32_t e = 0; e < 2; ++e) {
          s.d[n][e] *= fade[e];
          s.m[n][e] = top[e];
        }
      }
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (std::uint32_t k = 0; k < 4; ++k) {
          scores.x[n][i][k] = exp2_fast(scores.x[n][i][k] - reference[k % 2]);
          sum[k % 2] += scores.x[n][i][k];
        }
        p[n][i][0] = transpose8x8(Math::pack(scores.x[n][i][0], scores.x[n][i][1]));
        p[n][i][1] = transpose8x8(Math::pack(scores.x[n][i][2], scores.x[n][i][3]));
      }
#pragma unroll
      for (std::uint32_t e = 0; e < 2; ++e) s.d[n][e] += kScaled ? sum[e] / scales.y : sum[e];
      if (a.p.pairs != nullptr) {
        float m[2];
        for (std::uint32_t e = 0; e < 2; ++e) {
          sum[e] += __shfl_xor_sync(~0U, sum[e], 20);
          if (a.shape.page_tokens >= 32) sum[e] += __shfl_xor_sync(~0U, sum[e], 8);
          if (a.shape.page_tokens >= 64) sum[e] += __shfl_xor_sync(~0U, sum[e], 16);
          m[e] = sum[e] == 0.0F ? -INFINITY : reference[e] - shift;
        }
        write_pairs(m, sum, first_row + 8 * n, list_position, pages);
      }
    }

    const std::uint32_t near = note.base[c], far = note.base[c ^ 2];
    const auto tokens_of = [&](std::uint32_t block) {
      const std::uint32_t start = note.position[block];
      return length > start ? length - start : 0U;
    };
    const std::uint32_t near_tokens = kMasked ? tokens_of(c) : 16U;
    const std::uint32_t far_tokens = kMasked ? tokens_of(c ^ 2) : 16U;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i)
      add_values<kMasked>(s, i, near, far, near_tokens, far_tokens, p);
  }

  __device__ bool needs_mask(const TileNote& note, std::uint32_t length) const {
    const std::uint32_t position = note.position[lane % kTileBlocks];
    const std::uint32_t seen_by_all = length - a.shape.q_len + 1;
    bool partial = length < a.shape.q_len || position + kBlockTokens > seen_by_all;
    if (a.p.window != 0) partial = partial || position + a.p.window < length;
    return __any_sync(~0U, partial);
  }

  __device__ void start_installs(const TileNote& note) const {
    for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
      if (note.install[b] == 0) continue;
      const bool e4m3 = kScaled && (kForms == PageForms::kE4m3 || (note.base[b] & 1U) != 0);
      const std::uint32_t half = kBlockTokens * kDim * (e4m3 ? 1U : 2U);
      const std::uint32_t from = shared_address(smem) + (note.base[b] & ~1U);
      bulk_store(note.install[b], from, half);
      bulk_store(note.install[b] + std::uint64_t{a.shape.page_tokens} * kDim * (e4m3 ? 1U : 2U),
                 from + half, half);
      if (e4m3) {  // each block of a page writes the same scales
        const std::uint32_t sub = (note.position[b] & (a.shape.page_tokens - 1)) / kBlockTokens;
        const std::uint64_t page = note.install[b] - std::uint64_t{sub} * half;
        bulk_store(page + std::uint64_t{2} * a.shape.page_tokens * kDim, from + 2 * half, 16);
      }
    }
  }

  __device__ void consume() {
    const std::uint32_t sharing = a.warps_of_row_block;
    const std::uint32_t row_blocks = kConsumerWarps / sharing;
    const std::uint32_t row_block = warp % row_blocks, own = warp / row_blocks;
    const std::uint32_t first_row = row_block * 8 * kRowTiles;
    const float scale = a.p.scale != 0.0F ? a.p.scale : rsqrtf(static_cast<float>(kDim));
    const std::uint32_t pages_a_tile = a.pages_a_tile();
    std::uint32_t tiles_done = 0;
    for (std::uint32_t number = 0;; ++number) {
      const Segment segment = pop_segment(number);
      if (segment.tiles == 0) break;
      pair_group = segment.group;
      const std::uint32_t length = __ldg(a.p.lengths + a.sequence_of(segment.group));
      const std::uint32_t pages = pages_of(segment.group);
      State state;
      reset(state);
      uint4 q[kRowTiles][kSteps];
      load_queries(segment.group, first_row, q);
      const Horizon seen = horizon(length, first_row);
      for (std::uint32_t j = own; j < segment.tiles; j += sharing) {
        const std::uint32_t number_of_tile = tiles_done + j;
        const auto [number_seen, stage, parity] = ring_place(number_of_tile);
        // A parity tells a phase from its neighbours only, and this warp may come more than one
        // phase early or late: so first see that the stage has been given to this tile.
        if (lane == 0) {
          while (atomicAdd(&control.notes[stage].tile, 0U) != number_seen) __nanosleep(20);
        }
        __syncwarp();
        barrier_wait(at(control.full[stage]), parity);
        const TileNote& note = control.notes[stage];
        __syncwarp();
        const bool installs = a.p.installs != nullptr && row_block == 0;
        if (installs && lane == 0) start_installs(note);
        const std::size_t position = std::size_t{segment.first + j} * pages_a_tile;
        if (needs_mask(note, length)) {
          tile<true>(state, note, q, length, seen, first_row, scale, position, pages);
        } else {
          tile<false>(state, note, q, length, seen, first_row, scale, position, pages);
        }
        __syncwarp();
        if (lane == 0) {
          if (installs) bulk_store_read();
          barrier_arrive(at(control.empty[stage]));
        }
      }
      tiles_done += segment.tiles;
      leave_for_merger(state, number, own < segment.tiles);
    }
    if (a.p.installs != nullptr && lane == 0) bulk_store_done();
  }

  // ------------------------------------------------------------------ merging

  static constexpr std::uint32_t kSideBySide =
      4;  ///< sums a merging lane carries at once, to hide latency

  /// Orders what this warp wrote before what it does next, as seen by the device.
  __device__ static void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

  struct Merge {
    float m = -INFINITY, d = 0.0F;
    float4 o = {0.0F, 0.0F, 0.0F, 0.0F};
    /// Adds another part; the order of calls is the order of the sum. An empty part, (-inf, 0),
    /// changes nothing.
    __device__ void add(float m2, float d2, float4 o2) {
      const float top = fmaxf(m, m2);
      const float keep = m == -INFINITY ? 0.0F : exp2_fast(m - top);
      // A part that is all NaN has m -inf too and must show: only an empty one may be scaled away.
      const float take = m2 == -INFINITY ? (d2 == 0.0F ? 0.0F : 1.0F) : exp2_fast(m2 - top);
      m = top;
      d = d * keep + d2 * take;
      o.x = o.x * keep + o2.x * take;
      o.y = o.y * keep + o2.y * take;
      o.z = o.z * keep + o2.z * take;
      o.w = o.w * keep + o2.w * take;
    }
  };

  __device__ void write_final(std::uint32_t group, std::uint32_t row, std::uint32_t dim,
                              const Merge& r) const {
    const float inverse = r.d == 0.0F ? 0.0F : 1.0F / r.d;  // nothing to see: zeros, not NaN
    uint2 packed;
    packed.x = Math::pack(r.o.x * inverse, r.o.y * inverse);
    packed.y = Math::pack(r.o.z * inverse, r.o.w * inverse);
    *reinterpret_cast<uint2*>(out_row(group, row) + dim) = packed;
    if (dim == 0 && a.p.totals != nullptr) {
      a.p.totals[std::size_t{group} * a.rows + row] = {r.m, r.d};
    }
  }

  __device__ std::uint32_t rows_a_warp() const {
    return a.rows < 8 * kRowTiles ? a.rows : 8 * kRowTiles;
  }
  __device__ float* flushed_values(std::uint32_t w, std::uint32_t row) const {
    return flush + (w * rows_a_warp() + row) * kDim;
  }
  __device__ float* flushed_pair(std::uint32_t w, std::uint32_t row) const {
    return flush + kConsumerWarps * rows_a_warp() * kDim + (w * rows_a_warp() + row) * 2;
  }

  /// A consumer writes what it has of a segment where the merger finds it.
  __device__ void leave_for_merger(State& state, std::uint32_t number, bool had_tiles) {
    const std::uint32_t g = lane / 4, c = lane % 4;
    barrier_wait(at(control.flush_empty), (number + 1) & 1);
    __syncwarp();
    if (!had_tiles) {
      barrier_arrive(at(control.flush_full));
      return;
    }
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (std::uint32_t e = 0; e < 2; ++e) {
        float d = state.d[n][e];
        d += __shfl_xor_sync(~0U, d, 20);
        d += __shfl_xor_sync(~0U, d, 8);
        d += __shfl_xor_sync(~0U, d, 16);
        const std::uint32_t row = 8 * n + 2 * c + e;
        if (row >= rows_a_warp()) continue;
        if (g == 0) {
          flushed_pair(warp, row)[0] = state.m[n][e];
          flushed_pair(warp, row)[1] = d;
        }
#pragma unroll
        for (std::uint32_t t = 0; t < kDimTiles; t += 4) {
#pragma unroll
          for (std::uint32_t half = 0; half < 2; ++half) {
            // Element t of a lane: channel 64 * (t / 8) + 8 g + t % 8; row half 1 is half the head
            // further on.
            const std::uint32_t element = t + half * kDimTiles;
            const std::uint32_t channel = 64 * (element / 8) + 8 * g + element % 8;
            *reinterpret_cast<float4*>(flushed_values(warp, row) + channel) =
                make_float4(state.o[n][t][2 * half + e], state.o[n][t + 1][2 * half + e],
                            state.o[n][t + 2][2 * half + e], state.o[n][t + 3][2 * half + e]);
          }
        }
      }
    }
    barrier_arrive(at(control.flush_full));
  }

  /// Adds up the consumers of each segment in order. A group that lies in several segments goes
  /// through memory, and whoever finishes last adds up its segments in order.
  __device__ void merge() {
    const std::uint32_t row_blocks = kConsumerWarps / a.warps_of_row_block;
    const std::uint32_t rows = a.rows;
    constexpr std::uint32_t kQuads = kDim / 4;
    for (std::uint32_t number = 0;; ++number) {
      const Segment segment = pop_segment(number);
      if (segment.tiles == 0) return;
      const bool whole = segment.segments == 1;
      barrier_wait(at(control.flush_full), number & 1);
      for (std::uint32_t x0 = lane; x0 < rows * kQuads; x0 += 32 * kSideBySide) {
        Merge sum[kSideBySide];
        for (std::uint32_t w = 0; w < a.warps_of_row_block && w < segment.tiles; ++w) {
#pragma unroll
          for (std::uint32_t k = 0; k < kSideBySide; ++k) {
            const std::uint32_t x = x0 + 32 * k, row = x / kQuads, dim = x % kQuads * 4;
            if (row >= rows) continue;
            const std::uint32_t from = row / (8 * kRowTiles) + w * row_blocks,
                                local = row % (8 * kRowTiles);
            sum[k].add(flushed_pair(from, local)[0], flushed_pair(from, local)[1],
                       *reinterpret_cast<const float4*>(flushed_values(from, local) + dim));
          }
        }
#pragma unroll
        for (std::uint32_t k = 0; k < kSideBySide; ++k) {
          const std::uint32_t x = x0 + 32 * k, row = x / kQuads, dim = x % kQuads * 4;
          if (row >= rows) continue;
          if (whole) {
            write_final(segment.group, row, dim, sum[k]);
          } else {
            const std::size_t at_row = std::size_t{segment.slot} * rows + row;
            *reinterpret_cast<float4*>(a.partial_values + at_row * kDim + dim) = sum[k].o;
            if (dim == 0) a.partial_pairs[at_row] = {sum[k].m, sum[k].d};
          }
        }
      }
      barrier_arrive(at(control.flush_empty));
      if (!whole) merge_segments(segment);
    }
  }

  __device__ void merge_segments(const Segment& segment) {
    const std::uint32_t rows = a.rows;
    fence_device();
    __syncwarp();
    std::uint32_t last = 0;
    if (lane == 0) {
      last = atomicAdd(a.tickets + segment.group, 1U) == segment.segments - 1 ? 1 : 0;
      if (last != 0) a.tickets[segment.group] = 0;
    }
    if (__shfl_sync(~0U, last, 0) == 0) return;
    fence_device();
    constexpr std::uint32_t kQuads = kDim / 4;
    for (std::uint32_t x0 = lane; x0 < rows * kQuads; x0 += 32 * kSideBySide) {
      Merge sum[kSideBySide];
#pragma unroll 4
      for (std::uint32_t i = 0; i < segment.segments; ++i) {
#pragma unroll
        for (std::uint32_t k = 0; k < kSideBySide; ++k) {
          const std::uint32_t x = x0 + 32 * k, row = x / kQuads < rows ? x / kQuads : 0,
                              dim = x % kQuads * 4;
          const std::size_t at_row = std::size_t{segment.first_slot + i} * rows + row;
          const float2 pair = __ldcg(reinterpret_cast<const float2*>(a.partial_pairs + at_row));
          sum[k].add(
              pair.x, pair.y,
              __ldcg(reinterpret_cast<const float4*>(a.partial_values + at_row * kDim + dim)));
        }
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kSideBySide; ++k) {
        const std::uint32_t x = x0 + 32 * k;
        if (x < rows * kQuads) write_final(segment.group, x / kQuads, x % kQuads * 4, sum[k]);
      }
    }
  }

  __device__ void run() {
    init_barriers(kConsumerWarps / a.warps_of_row_block);
    wait_for_previous_kernel();
    allow_next_kernel();
    const WorkCut cut = WorkCut::of(scan_groups(), gridDim.x);
    if (warp < kConsumerWarps) {
      consume();
    } else if (warp < kConsumerWarps + kProducerWarps) {
      produce(warp - kConsumerWarps);
    } else if (warp == kConsumerWarps + kProducerWarps) {
      schedule(cut);
    } else {
      merge();
    }
  }
};

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
__global__ void __launch_bounds__(attend_threads(kRowTiles), 1)
    attend_kernel(const __grid_constant__ AttendArgs args) {
  extern __shared__ __align__(128) unsigned char attend_shared[];
  Attend<T, kDim, kRowTiles, kForms>(args, attend_shared).run();
}

}  // namespace lehr::kernels::cuda
