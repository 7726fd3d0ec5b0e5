// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_layout.cuh"

namespace lehr::kernels::cuda {

/// Fills its share of the ring of tiles, one of two warps: looks page entries up a batch of 32
/// ahead of need, and starts a copy a page. A stage always belongs to the same warp, so that its
/// phases are seen each in its turn. Pages that cross a link take longer than the ring is deep, so
/// their copies start as soon as the batch ahead is known, into slots of their own; where no slot
/// is free they are read in their turn like all others. Further ahead would not help: the link
/// serves in order, and pages needed later must not delay those needed now.
template <class F>
struct Producer {
  const F& f;
  std::uint32_t which;  ///< of the producers
  std::uint64_t policy;
  std::uint32_t host_next = 0, host_parity = 0;  ///< of this warp's host slots

  __device__ explicit Producer(const F& frame)
      : f(frame), which(frame.warp - F::kConsumerWarps), policy(evict_first_policy()) {}

  /// One list position's page and entry, and the first host slot that holds it, if any.
  struct Listed {
    std::uint32_t page;
    HostWord host;
    PageEntry entry;
  };

  __device__ Listed listed(const Segment& segment, std::uint32_t i) const {
    Listed x{i, {0}, kAbsentPage};
    const AttendArgs& a = f.a;
    const std::uint32_t end = (segment.first + segment.tiles) * a.pages_a_tile();
    if (i >= segment.pages || i >= end) return x;  // past it lies what other CTAs read
    if (a.p.selection != nullptr) {
      x.page = __ldcg(a.p.selection + std::size_t{segment.group} * a.p.selection_pitch + i);
    }
    // Read past L1: the table changes between launches, and one launch reads each word once.
    if (x.page < a.shape.max_pages) {
      x.entry = __ldcg(reinterpret_cast<const unsigned long long*>(a.p.table) +
                       std::size_t{segment.group} * a.shape.max_pages + x.page);
    }
    return x;
  }

  __device__ bool readable(DType format) const {
    if (F::kForms == PageForms::k16Bit) return format == f.a.shape.dtype;
    if (F::kForms == PageForms::kE4m3) return format == DType::kE4m3;
    return format == f.a.shape.dtype || format == DType::kE4m3 || format == DType::kInt8;
  }
  __device__ bool readable(PageEntry entry) const {
    return entry != kAbsentPage && readable(entry_format(entry)) && readable(entry_v_format(entry));
  }

  __device__ static typename F::Parts parts_of(PageEntry entry) {
    if (F::kForms == PageForms::k16Bit) return {Half::k16Bit, Half::k16Bit};
    if (F::kForms == PageForms::kE4m3) return {Half::kE4m3, Half::kE4m3};
    return {half_of(entry_format(entry)), half_of(entry_v_format(entry))};
  }

  /// Copies block `sub` of a page to `to`: one lane on sm_90, all lanes on sm_80.
  __device__ void copy_block(std::uint32_t to, PageEntry entry, std::uint32_t sub,
                             std::uint32_t barrier) const {
    const std::uint64_t from = entry_address(entry);
    const std::uint32_t target = shared_address(f.smem) + to;
    parts_of(entry).each(block_shift(), sub,
                         [&](std::uint32_t in_block, std::uint32_t in_page, std::uint32_t bytes) {
                           if constexpr (kBulkCopy) {
                             bulk_load(target + in_block, from + in_page, bytes, barrier, policy);
                           } else {
                             warp_load(target + in_block, from + in_page, bytes, f.lane);
                           }
                         });
  }
  __device__ std::uint32_t block_shift() const { return f.a.page_shift - 4; }

  /// Starts copies of those pages of a batch that cross a link, as many as slots are free for.
  /// `tile` is the running number of the batch's first tile.
  __device__ void start_host_reads(Listed& batch, std::uint32_t tile) {
    if constexpr (!kBulkCopy) return;
    const std::uint32_t slots = f.a.host_slots / kProducerWarps;
    if (slots == 0) return;
    const bool over_link = entry_over_link(batch.entry) && readable(batch.entry);
    if (!__any_sync(~0U, over_link)) return;
    const std::uint32_t own_tile = tile + f.lane / f.a.pages_a_tile();
    const bool mine = F::ring_place(f.a.stages, own_tile).place % kProducerWarps == which;
    const std::uint32_t blocks = 1U << block_shift();
    std::uint32_t away = __ballot_sync(~0U, over_link && mine);
    for (; away != 0; away &= away - 1) {
      const int of = __ffs(static_cast<int>(away)) - 1;
      const PageEntry entry = __shfl_sync(~0U, batch.entry, of);
      const std::uint32_t slot = which * slots + host_next + f.lane % blocks;
      if (!__all_sync(~0U, barrier_test(f.at(f.control.host_empty[slot]), host_parity ^ 1))) return;
      if (f.lane < blocks) {
        const std::uint32_t barrier = f.at(f.control.host_full[slot]);
        begin_fill(barrier, parts_of(entry).bytes());
        copy_block(f.host_base(slot), entry, f.lane, barrier);
      }
      if (static_cast<int>(f.lane) == of)
        batch.host = HostWord::of(which * slots + host_next, host_parity);
      host_next += blocks;
      if (host_next == slots) {
        host_next = 0;
        host_parity ^= 1;
      }
    }
  }

  /// Where a page that is being read is also written, or 0.
  __device__ std::uint64_t install_of(const Segment& segment, std::uint32_t page,
                                      PageEntry entry) const {
    if (!entry_over_link(entry) || f.a.p.installs == nullptr) return 0;
    return f.a.p.installs[std::size_t{segment.group} * f.a.shape.max_pages + page];
  }

  /// Fills one tile of the ring. `batch` holds one list position a lane, `in_batch` is the tile's
  /// first.
  __device__ void fill_tile(const Segment& segment, const Listed& batch, std::uint32_t in_batch,
                            std::uint32_t list_position, const typename F::RingPlace& ring) const {
    Control& control = f.control;
    const std::uint32_t shift = block_shift();
    const std::uint32_t block = f.lane % kTileBlocks;
    const std::uint32_t source = in_batch + (block >> shift);
    const PageEntry entry = __shfl_sync(~0U, batch.entry, static_cast<int>(source));
    const std::uint32_t page = __shfl_sync(~0U, batch.page, static_cast<int>(source));
    HostWord host{__shfl_sync(~0U, batch.host.word, static_cast<int>(source))};
    const std::uint32_t sub = block & ((1U << shift) - 1);
    const bool listed_here = list_position + (block >> shift) < segment.pages;
    const bool present = listed_here && readable(entry);
    if (host.used()) host.word += sub;  // slots of a page follow each other
    const std::uint32_t stage = ring.place;
    TileNote& note = control.notes[stage];
    const std::uint32_t in_ring = f.stage_base(stage) + block * F::Layout::stride;
    const std::uint32_t base = host.used() ? f.host_base(host.slot()) : in_ring;
    const std::uint64_t install =
        f.lane < kTileBlocks && present ? install_of(segment, page, entry) : 0;

    barrier_wait(f.at(control.empty[stage]), ring.parity ^ 1);
    if (f.lane < kTileBlocks) {
      note.block[block] = BlockWord::of(base, parts_of(entry));
      note.position[block] = present ? (page << f.a.page_shift) + sub * kBlockTokens : kNowhere;
      note.host[block] = host;
      note.install[block] = install;
      if (listed_here && !present && sub == 0 && f.a.p.absent != nullptr)
        atomicAdd(f.a.p.absent, 1U);
    }
    const bool mine = f.lane < kTileBlocks && present && !host.used();
    const std::uint32_t bytes = __reduce_add_sync(~0U, mine ? parts_of(entry).bytes() : 0U);
    const std::uint32_t barrier = f.at(control.full[stage]);
    if (f.lane == 0) {
      begin_fill(barrier, bytes);
      atomicExch(&note.tile, ring.number);
    } else if (f.lane < kTileBlocks) {
      barrier_arrive(barrier);  // each lane for its part of the note
    }
    __syncwarp();
    if constexpr (kBulkCopy) {
      if (mine) copy_block(in_ring, entry, sub, barrier);
    } else {
#pragma unroll 1
      for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
        const bool copied = __shfl_sync(~0U, mine, static_cast<int>(b));
        const std::uint32_t to = __shfl_sync(~0U, in_ring, static_cast<int>(b));
        const PageEntry from = __shfl_sync(~0U, entry, static_cast<int>(b));
        if (copied) copy_block(to, from, b & ((1U << shift) - 1), barrier);
      }
      end_fill_warp(barrier);
    }
  }

  __device__ void run() {
    const std::uint32_t pages_a_tile = f.a.pages_a_tile(), stages = f.a.stages.value;
    std::uint32_t number = 0;
    typename F::RingPlace ring{0, 0, 0};
    Segment segment = f.pop_segment(number);
    Listed next = listed(segment, segment.first * pages_a_tile + f.lane);
    start_host_reads(next, 0);
    while (segment.tiles != 0) {
      std::uint32_t i = segment.first * pages_a_tile;
      const std::uint32_t end = i + segment.tiles * pages_a_tile;
      Segment following{};
      for (; i < end; i += 32) {
        const Listed batch = next;
        if (i + 32 < end) {
          next = listed(segment, i + 32 + f.lane);
        } else {  // look up the next segment's first pages before they are needed
          following = f.pop_segment(++number);
          next = listed(following, following.first * pages_a_tile + f.lane);
        }
        const std::uint32_t in_batch = end - i < 32 ? end - i : 32;
        const std::uint32_t next_tile = ring.number + in_batch / pages_a_tile;
        // By the middle of the batch the entries of the next one have come.
        const std::uint32_t middle = in_batch <= 12 ? 0 : 12;
        for (std::uint32_t j = 0; j < in_batch; j += pages_a_tile) {
          if (ring.place % kProducerWarps == which) fill_tile(segment, batch, j, i + j, ring);
          if (j == middle) start_host_reads(next, next_tile);
          ++ring.number;
          if (++ring.place == stages) {
            ring.place = 0;
            ring.parity ^= 1;
          }
        }
      }
      segment = following;
    }
  }
};

}  // namespace lehr::kernels::cuda
