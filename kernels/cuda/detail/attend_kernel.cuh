// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/attend_work.cuh"
#include "kernels/cuda/detail/mma.cuh"

/// Split-KV paged decode attention. A CTA is four consumer warps and a producer warp that fills a ring of tiles in
/// shared memory. Where pages may lie over a link, a link warp fetches those far ahead of their turn, and a watcher
/// warp completes a tile when they have come. See kernels/README.md.
///
/// Shared memory banks decide the layout. A tile is four blocks of 16 tokens, each [K 16 rows][V 16 rows][pad], and
/// block b starts 32 b bytes off a multiple of 128, so that loads of different blocks hit different banks although
/// rows are whole multiples of 128 bytes. The matrix products then take their rows from several blocks at once:
///   S = K Q^T   row g of m-tile i: token 4i + (g & 1) (+2 for row g + 8) of block (g >> 1) ^ ((g & 1) << 1)
///   O = V^T P^T slots 2c, 2c+1 of k-step i: the tokens of rows 2c, 2c+1 above, that is of blocks c and c ^ 2
/// with g = lane / 4, c = lane % 4. A lane's scores all belong to one block, so page sums and page scales cost
/// almost nothing; the transposition between the two products is movmatrix.
namespace lehr::kernels::cuda {

inline constexpr std::uint32_t kConsumerWarps = 4;
/// Threads of a CTA: consumers and the producer, and for pages over a link two more warps.
__host__ __device__ constexpr std::uint32_t attend_threads(bool links) {
  return 32 * (kConsumerWarps + (links ? 3 : 1));
}
inline constexpr std::uint32_t kMaxAttendThreads = attend_threads(true);
inline constexpr std::uint32_t kMaxStages = 16;
inline constexpr std::uint32_t kMaxLinkSlots = 16;
inline constexpr std::uint32_t kSegmentRing = 4;
inline constexpr std::uint32_t kBankStep = 32;
inline constexpr std::uint32_t kEndOfTiles = 0x80000000U;  ///< in a note's link mask
inline constexpr std::uint32_t kNowhere = 0x7FFFFFF0U;  ///< position of a block that is absent

enum class PageForms { k16Bit, kE4m3, kMixed };

/// What a consumer must know of a tile beside its bytes.
struct TileNote {
  std::uint32_t base[kTileBlocks];      ///< of each block in shared memory; bit 0: e4m3
  std::uint32_t position[kTileBlocks];  ///< of each block's first token; far past the end when absent
  std::uint64_t install[kTileBlocks];   ///< K's destination, or 0
  std::uint32_t link_first;             ///< running number of the tile's first block that came over the link warp
  std::uint32_t link_mask;
  std::uint32_t tile;  ///< running number in this CTA; written last
};

struct Control {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  std::uint64_t noted[kMaxStages];  ///< a tile's note is written; the watcher waits on these
  std::uint64_t link_full[kMaxLinkSlots], link_empty[kMaxLinkSlots];
  std::uint64_t segment_full[kSegmentRing], segment_empty[kSegmentRing];
  TileNote notes[kMaxStages];
  Segment segments[kSegmentRing];
  std::uint32_t chunk_prefix[kMaxAttendThreads + 1];  ///< tiles before each thread's chunk of groups
  std::uint32_t warp_sums[kMaxAttendThreads / 32];
  std::uint32_t last_to_arrive;
};

template <std::uint32_t kDim, PageForms kForms>
struct BlockLayout {
  static constexpr std::uint32_t element = kForms == PageForms::kE4m3 ? 1 : 2;
  static constexpr std::uint32_t half = kBlockTokens * kDim * element;  ///< K, or V
  static constexpr std::uint32_t stride = 2 * half + kBankStep;
  static constexpr std::uint32_t tile = kTileBlocks * stride;
  static constexpr std::uint32_t link_slot = stride + 96;  ///< room to start at any of the four offsets
};

/// Shared memory beside the ring and the link slots.
__host__ __device__ constexpr std::uint32_t flush_bytes(std::uint32_t dim, std::uint32_t row_tiles,
                                                        std::uint32_t rows) {
  const std::uint32_t rows_a_warp = rows < 8 * row_tiles ? rows : 8 * row_tiles;
  return kConsumerWarps * rows_a_warp * (dim + 2) * 4;
}
inline constexpr std::uint32_t kControlBytes = (sizeof(Control) + 127) / 128 * 128;

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
struct Attend {
  using Layout = BlockLayout<kDim, kForms>;
  using Math = Half16<T>;
  static constexpr std::uint32_t kSteps = kDim / 32;  ///< 16-byte pieces of a 16-bit K row a lane reads
  static constexpr std::uint32_t kDimTiles = kDim / 16;
  static constexpr bool kScaled = kForms != PageForms::k16Bit;

  const AttendArgs& a;
  unsigned char* smem;
  Control& control;
  float* flush;
  std::uint32_t ring, links;  ///< offsets in shared memory
  std::uint32_t lane, warp;

  __device__ Attend(const AttendArgs& args, unsigned char* memory)
      : a(args),
        smem(memory),
        control(*reinterpret_cast<Control*>(memory)),
        flush(reinterpret_cast<float*>(memory + kControlBytes)),
        ring((kControlBytes + flush_bytes(kDim, kRowTiles, args.shape.rows()) + 127) / 128 * 128),
        links(ring + args.stages * ((Layout::tile + 127) / 128 * 128)),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {}

  __device__ std::uint32_t stage_base(std::uint32_t stage) const {
    return ring + stage * ((Layout::tile + 127) / 128 * 128);
  }
  __device__ std::uint32_t link_base(std::uint32_t slot, std::uint32_t block) const {
    return links + slot * ((Layout::link_slot + 127) / 128 * 128) + block * kBankStep;
  }
  __device__ std::uint32_t at(const std::uint64_t& barrier) const { return shared_address(&barrier); }

  // ------------------------------------------------------------------ set-up

  __device__ void init_barriers(std::uint32_t row_blocks) {
    if (threadIdx.x != 0) return;
    for (std::uint32_t i = 0; i < a.stages; ++i) {
      barrier_init(at(control.full[i]), fill_arrivals() + kTileBlocks - 1 + (a.link_slots > 0 ? 1 : 0));
      barrier_init(at(control.empty[i]), row_blocks);
      barrier_init(at(control.noted[i]), 1);
      control.notes[i].tile = ~0U;
    }
    for (std::uint32_t i = 0; i < a.link_slots; ++i) {
      barrier_init(at(control.link_full[i]), fill_arrivals());
      barrier_init(at(control.link_empty[i]), row_blocks);
    }
    for (std::uint32_t i = 0; i < kSegmentRing; ++i) {
      barrier_init(at(control.segment_full[i]), 1);
      barrier_init(at(control.segment_empty[i]), kConsumerWarps);
    }
    barrier_init_fence();
  }

  __device__ std::uint32_t chunk() const {
    return (static_cast<std::uint32_t>(a.shape.groups()) + blockDim.x - 1) / blockDim.x;
  }

  /// Tiles before each thread's chunk of groups; groups with nothing to read get their zeros here.
  __device__ std::uint32_t scan_groups() {
    const auto groups = static_cast<std::uint32_t>(a.shape.groups());
    const std::uint32_t first = threadIdx.x * chunk();
    std::uint32_t sum = 0;
    for (std::uint32_t g = first; g < first + chunk() && g < groups; ++g) {
      const std::uint32_t tiles = tiles_of(a, list_pages(a, g));
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

  __device__ T* out_row(std::uint32_t group, std::uint32_t row) const {
    const std::uint32_t ratio = a.shape.ratio();
    const std::size_t sequence = group / a.shape.kv_heads;
    const std::size_t head = group % a.shape.kv_heads * ratio + row % ratio;
    return static_cast<T*>(a.p.out) +
           ((sequence * a.shape.q_len + row / ratio) * a.shape.q_heads + head) * kDim;
  }

  __device__ void write_nothing(std::uint32_t group) const {
    for (std::uint32_t row = 0; row < a.shape.rows(); ++row) {
      auto* out = reinterpret_cast<uint4*>(out_row(group, row));
      for (std::uint32_t i = 0; i < kDim / 8; ++i) out[i] = make_uint4(0, 0, 0, 0);
      if (a.p.totals != nullptr) {
        a.p.totals[std::size_t{group} * a.shape.rows() + row] = {-INFINITY, 0.0F};
      }
    }
  }

  // ------------------------------------------------------------------ producers

  /// A place on the line of tiles: tile `first` of `group`, whose list has `tiles` tiles and `pages` pages.
  struct Place {
    std::uint32_t group, first, pages, tiles;
  };

  /// The whole warp looks for the group of a tile.
  __device__ Place find(std::uint32_t tile) const {
    std::uint32_t owner = 0;
    for (std::uint32_t base = 0; base < blockDim.x; base += 32) {
      // The last chunk that starts at or before the tile and is not empty holds it.
      const std::uint32_t starts = __ballot_sync(~0U, control.chunk_prefix[base + lane] <= tile);
      if (starts != 0) owner = base + 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(starts)));
    }
    std::uint32_t before = control.chunk_prefix[owner];
    for (std::uint32_t g0 = owner * chunk();; g0 += 32) {
      const std::uint32_t g = g0 + lane;
      const std::uint32_t pages = g < a.shape.groups() ? list_pages(a, g) : 0;
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
      if (g0 >= a.shape.groups()) return {0, 0, 0, 0};  // not reached: the tile lies on the line
    }
  }

  __device__ void next_group(Place& place) const {
    do {
      ++place.group;
      place.pages = list_pages(a, place.group);
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
  __device__ void copy_block(std::uint32_t to, PageEntry entry, std::uint32_t sub, std::uint32_t barrier,
                             std::uint64_t policy) const {
    const std::uint32_t half = half_bytes(entry);
    const std::uint32_t blocks = a.shape.page_tokens / kBlockTokens;
    const std::uint64_t from = entry_address(entry);
    const std::uint32_t target = shared_address(smem) + to;
    const auto copy = [&](std::uint32_t offset, std::uint64_t source, std::uint32_t bytes) {
      if (LEHR_BULK_COPY) {
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

  /// Fills one tile of the ring. `batch` holds one list position a lane, `in_batch` is the tile's first.
  __device__ void fill_tile(const Place& place, const Listed& batch, std::uint32_t in_batch,
                            std::uint32_t list_position, std::uint32_t tile, bool links_apart,
                            std::uint32_t& link_count, std::uint64_t policy) {
    const std::uint32_t stage = tile % a.stages;
    const std::uint32_t blocks_a_page = a.shape.page_tokens / kBlockTokens;
    const std::uint32_t block = lane % kTileBlocks;
    const std::uint32_t source = in_batch + block / blocks_a_page;
    const PageEntry entry = __shfl_sync(~0U, batch.entry, static_cast<int>(source));
    const std::uint32_t page = __shfl_sync(~0U, batch.page, static_cast<int>(source));
    const std::uint32_t sub = block % blocks_a_page;
    const bool listed_here = list_position + block / blocks_a_page < place.pages;
    const bool present = listed_here && readable(entry);
    const bool apart = present && links_apart && entry_over_link(entry);
    const std::uint32_t apart_mask = __ballot_sync(~0U, apart) & 0xFU;

    barrier_wait(at(control.empty[stage]), (tile / a.stages + 1) & 1);
    TileNote& note = control.notes[stage];
    std::uint32_t base = stage_base(stage) + block * Layout::stride;
    if (apart) {
      const std::uint32_t number = link_count + static_cast<std::uint32_t>(__popc(apart_mask & ((1U << block) - 1)));
      base = link_base(number % a.link_slots, block);
    }
    if (lane < kTileBlocks) {
      const bool e4m3 = kScaled && entry_format(entry) == DType::kE4m3;
      note.base[block] = base | (e4m3 ? 1U : 0U);
      note.position[block] = present ? page * a.shape.page_tokens + sub * kBlockTokens : kNowhere;
      std::uint64_t install = 0;
      if (present && entry_over_link(entry) && a.p.installs != nullptr) {
        install = a.p.installs[std::size_t{place.group} * a.shape.max_pages + page];
        if (install != 0) install += std::uint64_t{sub} * half_bytes(entry);
      }
      note.install[block] = install;
      if (lane == 0) {
        note.link_first = link_count;
        note.link_mask = apart_mask;
      }
      if (listed_here && !present && sub == 0 && a.p.absent != nullptr) atomicAdd(a.p.absent, 1U);
    }
    const bool mine = lane < kTileBlocks && present && !apart;
    const std::uint32_t bytes = __reduce_add_sync(~0U, mine ? block_bytes(entry) : 0U);
    link_count += static_cast<std::uint32_t>(__popc(apart_mask));
    const std::uint32_t barrier = at(control.full[stage]);
    if (lane == 0) {
      if (a.link_slots > 0) barrier_arrive(at(control.noted[stage]));
      begin_fill(barrier, bytes);
      atomicExch(&note.tile, tile);
    } else if (lane < kTileBlocks) {
      barrier_arrive(barrier);  // each lane for its part of the note
    }
    __syncwarp();
    if (LEHR_BULK_COPY) {
      if (mine) copy_block(base, entry, sub, barrier, policy);
    } else {
      for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
        const bool copied = __shfl_sync(~0U, mine, static_cast<int>(b));
        const std::uint32_t to = __shfl_sync(~0U, base, static_cast<int>(b));
        const PageEntry from = __shfl_sync(~0U, entry, static_cast<int>(b));
        if (copied) copy_block(to, from, b % blocks_a_page, barrier, policy);
      }
      end_fill_warp(barrier);
    }
  }

  /// Calls each(place, tiles) for the segments of a piece.
  template <class Each>
  __device__ void for_segments(const WorkCut& cut, std::uint32_t piece, Each&& each) const {
    std::uint32_t tile = cut.piece_begin(piece);
    const std::uint32_t end = cut.piece_end(piece);
    if (tile >= end) return;
    Place place = find(tile);
    while (true) {
      const std::uint32_t left = place.tiles - place.first;
      const std::uint32_t tiles = left < end - tile ? left : end - tile;
      each(place, tiles, tile);
      tile += tiles;
      if (tile >= end) return;
      next_group(place);
    }
  }

  __device__ void produce(const WorkCut& cut) {
    const std::uint64_t policy = evict_first_policy();
    const std::uint32_t pages_a_tile = kTileTokens / a.shape.page_tokens;
    std::uint32_t tile = 0, segment = 0, link_count = 0;
    std::uint32_t piece = blockIdx.x < cut.pieces ? blockIdx.x : ~0U;
    const bool handed_out = cut.fixed < cut.total;
    if (piece == ~0U && handed_out) piece = grab(cut);
    while (piece < cut.piece_count()) {
      const bool links_apart = piece < cut.pieces && a.link_slots > 0;
      for_segments(cut, piece, [&](const Place& place, std::uint32_t tiles, std::uint32_t line) {
        push_segment(cut, place, tiles, line, piece, segment++);
        std::uint32_t i = place.first * pages_a_tile;
        const std::uint32_t end = i + tiles * pages_a_tile;
        Listed next = listed(place, i + lane);
        for (; i < end; i += 32) {
          const Listed batch = next;
          if (i + 32 < end) next = listed(place, i + 32 + lane);
          for (std::uint32_t j = 0; j < 32 && i + j < end; j += pages_a_tile) {
            fill_tile(place, batch, j, i + j, tile++, links_apart, link_count, policy);
          }
        }
      });
      piece = handed_out ? grab(cut) : ~0U;
    }
    push_end(segment);
    if (a.link_slots > 0) {
      const std::uint32_t stage = tile % a.stages;
      barrier_wait(at(control.empty[stage]), (tile / a.stages + 1) & 1);
      if (lane == 0) {
        control.notes[stage].link_mask = kEndOfTiles;
        barrier_arrive(at(control.noted[stage]));
      }
    }
    if (handed_out && lane == 0) {
      // The last CTA to find the line empty leaves the counters zero for the next launch.
      if (atomicAdd(a.next_piece + 1, 1U) == gridDim.x - 1) {
        a.next_piece[0] = 0;
        a.next_piece[1] = 0;
      }
    }
  }

  __device__ std::uint32_t grab(const WorkCut& cut) const {
    std::uint32_t n = 0;
    if (lane == 0) n = atomicAdd(a.next_piece, 1U);
    return cut.pieces + __shfl_sync(~0U, n, 0);
  }

  __device__ void push_segment(const WorkCut& cut, const Place& place, std::uint32_t tiles,
                               std::uint32_t line, std::uint32_t piece, std::uint32_t number) {
    const std::uint32_t place_in_ring = number % kSegmentRing;
    barrier_wait(at(control.segment_empty[place_in_ring]), (number / kSegmentRing + 1) & 1);
    if (lane == 0) {
      const std::uint32_t start = line - place.first;
      const std::uint32_t first_piece = cut.piece_of(start);
      const std::uint32_t last_piece = cut.piece_of(start + place.tiles - 1);
      control.segments[place_in_ring] = {place.group, place.first, tiles, piece + place.group,
                                         first_piece + place.group, last_piece - first_piece + 1};
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

  /// The link warp walks this CTA's fixed piece and starts the reads that cross a link, as many as it has slots for,
  /// long before their tiles have their turn: the link never idles while HBM is read.
  __device__ void fetch_over_links(const WorkCut& cut) {
    if (blockIdx.x >= cut.pieces) return;
    const std::uint64_t policy = evict_first_policy();
    const std::uint32_t pages_a_tile = kTileTokens / a.shape.page_tokens;
    const std::uint32_t blocks_a_page = a.shape.page_tokens / kBlockTokens;
    std::uint32_t number = 0;
    for_segments(cut, blockIdx.x, [&](const Place& place, std::uint32_t tiles, std::uint32_t) {
      const std::uint32_t begin = place.first * pages_a_tile;
      const std::uint32_t limit = begin + tiles * pages_a_tile;
      const std::uint32_t end = limit < place.pages ? limit : place.pages;
      Listed next = listed(place, begin + lane);
      for (std::uint32_t i = begin; i < end; i += 32) {
        const Listed batch = next;
        if (i + 32 < end) next = listed(place, i + 32 + lane);
        std::uint32_t over = __ballot_sync(
            ~0U, i + lane < end && readable(batch.entry) && entry_over_link(batch.entry));
        for (; over != 0; over &= over - 1) {
          const int from = __ffs(static_cast<int>(over)) - 1;
          const PageEntry entry = __shfl_sync(~0U, batch.entry, from);
          for (std::uint32_t sub = 0; sub < blocks_a_page; ++sub, ++number) {
            const std::uint32_t slot = number % a.link_slots;
            const std::uint32_t block =
                ((i + static_cast<std::uint32_t>(from)) * blocks_a_page + sub) % kTileBlocks;
            barrier_wait(at(control.link_empty[slot]), (number / a.link_slots + 1) & 1);
            const std::uint32_t barrier = at(control.link_full[slot]);
            if (lane == 0) begin_fill(barrier, block_bytes(entry));
            __syncwarp();
            if (!LEHR_BULK_COPY || lane == 0) {
              copy_block(link_base(slot, block), entry, sub, barrier, policy);
            }
            end_fill_warp(barrier);
          }
        }
      }
    });
  }

  /// The watcher waits for the link's blocks in order and completes each tile's barrier when its own have come.
  /// One warp must do this alone: parities tell a phase from its neighbours only.
  __device__ void watch_links() {
    if (lane != 0) return;
    std::uint32_t tile = 0, seen = 0;
    while (true) {
      const std::uint32_t stage = tile % a.stages;
      barrier_wait(at(control.noted[stage]), (tile / a.stages) & 1);
      const TileNote& note = control.notes[stage];
      if (note.link_mask == kEndOfTiles) return;
      const std::uint32_t end = note.link_first + static_cast<std::uint32_t>(__popc(note.link_mask));
      for (; seen < end; ++seen) {
        barrier_wait(at(control.link_full[seen % a.link_slots]), (seen / a.link_slots) & 1);
      }
      barrier_arrive(at(control.full[stage]));
      ++tile;
    }
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
  __device__ void load_queries(std::uint32_t group, std::uint32_t first_row, uint4 (&q)[kRowTiles][kSteps]) const {
    const std::uint32_t ratio = a.shape.ratio();
    const std::size_t sequence = group / a.shape.kv_heads;
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      const std::uint32_t row = first_row + 8 * n + lane / 4;
      const std::size_t head = group % a.shape.kv_heads * ratio + row % ratio;
      const auto* from = reinterpret_cast<const uint4*>(
          static_cast<const T*>(a.p.q) + ((sequence * a.shape.q_len + row / ratio) * a.shape.q_heads + head) * kDim);
      for (std::uint32_t s = 0; s < kSteps; ++s) {
        q[n][s] = row < a.shape.rows() ? __ldg(from + 4 * s + lane % 4) : make_uint4(0, 0, 0, 0);
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
  __device__ uint4 eight(std::uint32_t block, std::uint32_t half, std::uint32_t token, std::uint32_t index) const {
    const bool e4m3 = kForms == PageForms::kE4m3 || (kForms == PageForms::kMixed && (block & 1U) != 0);
    const std::uint32_t base = block & ~1U;
    if (e4m3) {
      const std::uint32_t offset = base + half * kBlockTokens * kDim + token * kDim + index * 8;
      return widen(*reinterpret_cast<const uint2*>(at(offset)));
    }
    const std::uint32_t offset = base + (half * kBlockTokens + token) * kDim * 2 + index * 16;
    return *reinterpret_cast<const uint4*>(at(offset));
  }

  __device__ float2 scales_of(std::uint32_t block) const {
    const bool e4m3 = kForms == PageForms::kE4m3 || (kForms == PageForms::kMixed && (block & 1U) != 0);
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

  __device__ void dot_keys(std::uint32_t block, const uint4 (&q)[kRowTiles][kSteps], Scores& scores) const {
    const std::uint32_t g = lane / 4, c = lane % 4;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      for (std::uint32_t n = 0; n < kRowTiles; ++n) {
        for (float& x : scores.x[n][i]) x = 0.0F;
      }
#pragma unroll
      for (std::uint32_t s = 0; s < kSteps; ++s) {
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

  /// Scaled logits in log2 units, -inf where a query must not look.
  template <bool kMasked>
  __device__ void to_logits(Scores& scores, float scale, float cap, float shift, std::uint32_t position,
                            std::uint32_t length, std::uint32_t first_row) const {
    constexpr float kLog2e = 1.4426950408889634F;
    const std::uint32_t g = lane / 4, c = lane % 4;
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
          const std::uint32_t row = first_row + 8 * n + 2 * c + k % 2;
          const std::uint32_t query = row / a.shape.ratio();
          const std::uint32_t seen = position + 4 * (k / 4) + 2 * (k % 4 / 2) + (g & 1);
          // Signed: a query may stand before the start of a short sequence.
          const int end = static_cast<int>(length - a.shape.q_len + query + 1);
          const int from = a.p.window == 0 ? 0 : end - static_cast<int>(a.p.window);
          if (static_cast<int>(seen) >= end || static_cast<int>(seen) < from) x = -INFINITY;
        }
      }
    }
  }

  __device__ void write_pairs(const float (&m)[2], const float (&sum)[2], std::uint32_t first_row,
                              std::size_t list_position, std::uint32_t pages) const {
    const std::uint32_t g = lane / 4, c = lane % 4;
    const std::uint32_t blocks_a_page = a.shape.page_tokens / kBlockTokens;
    const std::uint32_t block = (g >> 1) ^ ((g & 1) << 1);
    const std::size_t page = list_position + block / blocks_a_page;
    // One lane a page and pair of rows: even rows of the first block hold the sum of their page.
    if ((g & 1) != 0 || block % blocks_a_page != 0 || page >= pages) return;
    const std::uint32_t row = first_row + 2 * c;
    const std::uint32_t rows = a.shape.rows();
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
  __device__ void tile(State& s, const TileNote& note, const uint4 (&q)[kRowTiles][kSteps], std::uint32_t length,
                       std::uint32_t first_row, float scale, std::size_t list_position, std::uint32_t pages) {
    const std::uint32_t g = lane / 4, c = lane % 4;
    const std::uint32_t own = (g >> 1) ^ ((g & 1) << 1);
    const std::uint32_t key_block = note.base[own];
    float2 scales = make_float2(1.0F, 1.0F);
    // An absent block's bytes are whatever was there before.
    if (kScaled && !(kMasked && note.position[own] >= kNowhere)) scales = scales_of(key_block);
    const float shift = kScaled ? __log2f(scales.y) : 0.0F;  // V's scale rides on the weights

    Scores scores;
    dot_keys(key_block, q, scores);
    to_logits<kMasked>(scores, scale * scales.x, a.p.soft_cap, shift, note.position[own], length, first_row);

    std::uint32_t p[kRowTiles][4][2];
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0F, 0.0F}, reference[2];
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k) top[k % 2] = fmaxf(top[k % 2], scores.x[n][k / 4][k % 4]);
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
        const float fade[2] = {exp2_fast(s.m[n][0] - reference[0]), exp2_fast(s.m[n][1] - reference[1])};
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
    for (std::uint32_t i = 0; i < 4; ++i) add_values<kMasked>(s, i, near, far, near_tokens, far_tokens, p);
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
      bulk_store(note.install[b] + std::uint64_t{a.shape.page_tokens} * kDim * (e4m3 ? 1U : 2U), from + half, half);
      if (e4m3) {  // each block of a page writes the same scales
        const std::uint32_t sub = note.position[b] % a.shape.page_tokens / kBlockTokens;
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
    const std::uint32_t pages_a_tile = kTileTokens / a.shape.page_tokens;
    std::uint32_t tiles_done = 0;
    for (std::uint32_t number = 0;; ++number) {
      const std::uint32_t ring_place = number % kSegmentRing;
      barrier_wait(at(control.segment_full[ring_place]), (number / kSegmentRing) & 1);
      const Segment segment = control.segments[ring_place];
      __syncwarp();
      if (lane == 0) barrier_arrive(at(control.segment_empty[ring_place]));
      if (segment.tiles == 0) break;
      pair_group = segment.group;
      const std::uint32_t length = __ldg(a.p.lengths + segment.group / a.shape.kv_heads);
      const std::uint32_t pages = list_pages(a, segment.group);
      State state;
      reset(state);
      uint4 q[kRowTiles][kSteps];
      load_queries(segment.group, first_row, q);
      for (std::uint32_t j = own; j < segment.tiles; j += sharing) {
        const std::uint32_t number_of_tile = tiles_done + j;
        const std::uint32_t stage = number_of_tile % a.stages;
        // A parity tells a phase from its neighbours only, and this warp may come more than one phase early or late:
        // so first see that the stage has been given to this tile.
        if (lane == 0) {
          while (atomicAdd(&control.notes[stage].tile, 0U) != number_of_tile) __nanosleep(20);
        }
        __syncwarp();
        barrier_wait(at(control.full[stage]), (number_of_tile / a.stages) & 1);
        const TileNote& note = control.notes[stage];
        const std::uint32_t link_mask = note.link_mask, link_first = note.link_first;
        const auto link_count = static_cast<std::uint32_t>(__popc(link_mask));
        __syncwarp();
        const bool installs = a.p.installs != nullptr && row_block == 0;
        if (installs && lane == 0) start_installs(note);
        const std::size_t position = std::size_t{segment.first + j} * pages_a_tile;
        if (needs_mask(note, length)) {
          tile<true>(state, note, q, length, first_row, scale, position, pages);
        } else {
          tile<false>(state, note, q, length, first_row, scale, position, pages);
        }
        __syncwarp();
        if (lane == 0) {
          if (installs) bulk_store_read();
          barrier_arrive(at(control.empty[stage]));
          for (std::uint32_t k = 0; k < link_count; ++k) {
            barrier_arrive(at(control.link_empty[(link_first + k) % a.link_slots]));
          }
        }
      }
      tiles_done += segment.tiles;
      finish_segment(segment, state, row_blocks);
    }
    if (a.p.installs != nullptr && lane == 0) bulk_store_done();
  }

  // ------------------------------------------------------------------ merging

  __device__ static void consumer_barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumerWarps * 32) : "memory");
  }

  struct Merge {
    float m = -INFINITY, d = 0.0F;
    float4 o = {0.0F, 0.0F, 0.0F, 0.0F};
    /// Adds another part; the order of calls is the order of the sum.
    __device__ void add(float m2, float d2, float4 o2) {
      const float top = fmaxf(m, m2);
      if (top == -INFINITY && !(d2 != 0.0F)) return;  // both empty
      const float keep = m == -INFINITY ? 0.0F : exp2_fast(m - top);
      const float take = m2 == -INFINITY ? 0.0F : exp2_fast(m2 - top);
      m = top;
      d = d * keep + d2 * take;
      o.x = o.x * keep + o2.x * take;
      o.y = o.y * keep + o2.y * take;
      o.z = o.z * keep + o2.z * take;
      o.w = o.w * keep + o2.w * take;
    }
  };

  __device__ void write_final(std::uint32_t group, std::uint32_t row, std::uint32_t dim, const Merge& r) const {
    const float inverse = r.d == 0.0F ? 0.0F : 1.0F / r.d;  // nothing to see: zeros, not NaN
    uint2 packed;
    packed.x = Math::pack(r.o.x * inverse, r.o.y * inverse);
    packed.y = Math::pack(r.o.z * inverse, r.o.w * inverse);
    *reinterpret_cast<uint2*>(out_row(group, row) + dim) = packed;
    if (dim == 0 && a.p.totals != nullptr) {
      a.p.totals[std::size_t{group} * a.shape.rows() + row] = {r.m, r.d};
    }
  }

  /// Merges the warps of this CTA in order; a group that lies in several segments goes through memory, and
  /// whoever finishes last merges its segments in order.
  __device__ void finish_segment(const Segment& segment, State& state, std::uint32_t row_blocks) {
    const std::uint32_t rows = a.shape.rows();
    const std::uint32_t rows_a_warp = rows < 8 * kRowTiles ? rows : 8 * kRowTiles;
    const std::uint32_t g = lane / 4, c = lane % 4;
    float* values = flush + warp * rows_a_warp * kDim;
    float* pairs = flush + kConsumerWarps * rows_a_warp * kDim + warp * rows_a_warp * 2;
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (std::uint32_t e = 0; e < 2; ++e) {
        float d = state.d[n][e];
        d += __shfl_xor_sync(~0U, d, 20);
        d += __shfl_xor_sync(~0U, d, 8);
        d += __shfl_xor_sync(~0U, d, 16);
        const std::uint32_t row = 8 * n + 2 * c + e;
        if (row >= rows_a_warp) continue;
        if (g == 0) {
          pairs[2 * row] = state.m[n][e];
          pairs[2 * row + 1] = d;
        }
#pragma unroll
        for (std::uint32_t t = 0; t < kDimTiles; t += 4) {
#pragma unroll
          for (std::uint32_t half = 0; half < 2; ++half) {
            // Element t of a lane: channel 64 * (t / 8) + 8 g + t % 8; row half 1 is half the head further on.
            const std::uint32_t element = t + half * kDimTiles;
            const std::uint32_t channel = 64 * (element / 8) + 8 * g + element % 8;
            *reinterpret_cast<float4*>(values + row * kDim + channel) =
                make_float4(state.o[n][t][2 * half + e], state.o[n][t + 1][2 * half + e],
                            state.o[n][t + 2][2 * half + e], state.o[n][t + 3][2 * half + e]);
          }
        }
      }
    }
    consumer_barrier();
    const bool whole = segment.segments == 1;
    constexpr std::uint32_t kQuads = kDim / 4;
    for (std::uint32_t x = threadIdx.x; x < rows * kQuads; x += kConsumerWarps * 32) {
      const std::uint32_t row = x / kQuads, dim = x % kQuads * 4;
      const std::uint32_t block = row / (8 * kRowTiles), local = row % (8 * kRowTiles);
      Merge merge;
      for (std::uint32_t w = block; w < kConsumerWarps; w += row_blocks) {
        const float* pair = flush + kConsumerWarps * rows_a_warp * kDim + (w * rows_a_warp + local) * 2;
        merge.add(pair[0], pair[1],
                  *reinterpret_cast<const float4*>(flush + (w * rows_a_warp + local) * kDim + dim));
      }
      if (whole) {
        write_final(segment.group, row, dim, merge);
      } else {
        const std::size_t at_row = std::size_t{segment.slot} * rows + row;
        *reinterpret_cast<float4*>(a.partial_values + at_row * kDim + dim) = merge.o;
        if (dim == 0) a.partial_pairs[at_row] = {merge.m, merge.d};
      }
    }
    if (!whole) merge_segments(segment);
    consumer_barrier();  // the flush buffer is free again
  }

  __device__ void merge_segments(const Segment& segment) {
    const std::uint32_t rows = a.shape.rows();
    __threadfence();
    consumer_barrier();
    if (threadIdx.x == 0) {
      const bool last = atomicAdd(a.tickets + segment.group, 1U) == segment.segments - 1;
      if (last) a.tickets[segment.group] = 0;
      control.last_to_arrive = last ? 1 : 0;
    }
    consumer_barrier();
    if (control.last_to_arrive == 0) return;
    __threadfence();
    constexpr std::uint32_t kQuads = kDim / 4;
    for (std::uint32_t x = threadIdx.x; x < rows * kQuads; x += kConsumerWarps * 32) {
      const std::uint32_t row = x / kQuads, dim = x % kQuads * 4;
      Merge merge;
      for (std::uint32_t i = 0; i < segment.segments; ++i) {
        const std::size_t at_row = std::size_t{segment.first_slot + i} * rows + row;
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(a.partial_pairs + at_row));
        merge.add(pair.x, pair.y, __ldcg(reinterpret_cast<const float4*>(a.partial_values + at_row * kDim + dim)));
      }
      write_final(segment.group, row, dim, merge);
    }
  }

  __device__ void run() {
    init_barriers(kConsumerWarps / a.warps_of_row_block);
    wait_for_previous_kernel();
    allow_next_kernel();
    const WorkCut cut = WorkCut::of(scan_groups(), a, gridDim.x);
    if (warp < kConsumerWarps) {
      consume();
    } else if (warp == kConsumerWarps) {
      produce(cut);
    } else if (warp == kConsumerWarps + 1) {
      fetch_over_links(cut);
    } else {
      watch_links();
    }
  }
};

template <class T, std::uint32_t kDim, std::uint32_t kRowTiles, PageForms kForms>
__global__ void __launch_bounds__(kMaxAttendThreads, 1)
    attend_kernel(const __grid_constant__ AttendArgs args) {
  extern __shared__ __align__(128) unsigned char attend_shared[];
  Attend<T, kDim, kRowTiles, kForms>(args, attend_shared).run();
}

}  // namespace lehr::kernels::cuda
