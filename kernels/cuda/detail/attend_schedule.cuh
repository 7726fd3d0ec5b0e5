// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/cuda/detail/attend_layout.cuh"

namespace lehr::kernels::cuda {

/// Cuts the line of tiles and announces this CTA's segments, one warp; the set-up before it is for
/// all threads.
template <class F>
struct Scheduler {
  const F& f;

  /// A place on the line of tiles: tile `first` of `group`, whose list has `tiles` tiles and
  /// `pages` pages.
  struct Place {
    std::uint32_t group, first, pages, tiles;
  };

  __device__ std::uint32_t chunk() const { return (f.a.groups + blockDim.x - 1) / blockDim.x; }

  /// All threads: tiles before each thread's chunk of groups; groups with nothing to read get their
  /// zeros here. Returns all tiles.
  __device__ std::uint32_t scan_groups() const {
    Control& control = f.control;
    const std::uint32_t first = threadIdx.x * chunk();
    std::uint32_t sum = 0;
    for (std::uint32_t g = first; g < first + chunk() && g < f.a.groups; ++g) {
      const std::uint32_t pages = list_pages(f.a, g);
      if (g < kCachedGroups) control.pages[g] = pages;
      const std::uint32_t tiles = tiles_of(f.a, pages);
      if (tiles == 0 && g % gridDim.x == blockIdx.x) write_nothing(g);
      sum += tiles;
    }
    std::uint32_t before = sum;
    for (std::uint32_t d = 1; d < 32; d *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0U, before, d);
      if (f.lane >= d) before += other;
    }
    if (f.lane == 31) control.warp_sums[f.warp] = before;
    __syncthreads();
    std::uint32_t base = 0;
    for (std::uint32_t w = 0; w < f.warp; ++w) base += control.warp_sums[w];
    control.chunk_prefix[threadIdx.x + 1] = base + before;
    if (threadIdx.x == 0) control.chunk_prefix[0] = 0;
    __syncthreads();
    return control.chunk_prefix[blockDim.x];
  }

  __device__ void write_nothing(std::uint32_t group) const {
    for (std::uint32_t row = 0; row < f.a.rows; ++row) {
      auto* out = reinterpret_cast<uint4*>(f.out_row(group, row));
      for (std::uint32_t i = 0; i < F::kDim / 8; ++i) out[i] = make_uint4(0, 0, 0, 0);
      if (f.a.p.totals != nullptr) {
        f.a.p.totals[std::size_t{group} * f.a.rows + row] = {-INFINITY, 0.0F};
      }
    }
  }

  /// The whole warp looks for the group of a tile.
  __device__ Place find(std::uint32_t tile) const {
    std::uint32_t owner = 0;
    for (std::uint32_t base = 0; base < blockDim.x; base += 32) {
      // The last chunk that starts at or before the tile and is not empty holds it.
      const std::uint32_t starts =
          __ballot_sync(~0U, f.control.chunk_prefix[base + f.lane] <= tile);
      if (starts != 0)
        owner = base + 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(starts)));
    }
    std::uint32_t before = f.control.chunk_prefix[owner];
    for (std::uint32_t g0 = owner * chunk();; g0 += 32) {
      const std::uint32_t g = g0 + f.lane;
      const std::uint32_t pages = g < f.a.groups ? f.pages_of(g) : 0;
      const std::uint32_t tiles = tiles_of(f.a, pages);
      std::uint32_t end = tiles;
      for (std::uint32_t d = 1; d < 32; d *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0U, end, d);
        if (f.lane >= d) end += other;
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
      if (g0 >= f.a.groups) return {0, 0, 0, 0};  // not reached: the tile lies on the line
    }
  }

  __device__ void next_group(Place& place) const {
    do {
      ++place.group;
      place.pages = f.pages_of(place.group);
      place.tiles = tiles_of(f.a, place.pages);
    } while (place.tiles == 0);
    place.first = 0;
  }

  __device__ void push(const Segment& segment, std::uint32_t number) const {
    const std::uint32_t slot = number % kSegmentRing;
    barrier_wait(f.at(f.control.segment_empty[slot]), (number / kSegmentRing + 1) & 1);
    if (f.lane == 0) {
      f.control.segments[slot] = segment;
      barrier_arrive(f.at(f.control.segment_full[slot]));
    }
    __syncwarp();
  }

  /// `line` is the segment's first tile on the line.
  __device__ Segment segment_at(const WorkCut& cut, const Place& place, std::uint32_t tiles,
                                std::uint32_t line) const {
    const std::uint32_t start = line - place.first;
    const std::uint32_t first_piece = cut.piece_of(start);
    const std::uint32_t last_piece = cut.piece_of(start + place.tiles - 1);
    return {place.group,
            place.first,
            tiles,
            place.pages,
            blockIdx.x + place.group,
            first_piece + place.group,
            last_piece - first_piece + 1,
            0};
  }

  __device__ void run(const WorkCut& cut) const {
    std::uint32_t number = 0;
    if (blockIdx.x < cut.pieces) {
      std::uint32_t line = cut.begin(blockIdx.x);
      const std::uint32_t line_end = cut.begin(blockIdx.x + 1);
      Place place = find(line);
      while (true) {
        const std::uint32_t left = place.tiles - place.first;
        const std::uint32_t tiles = left < line_end - line ? left : line_end - line;
        Segment segment = segment_at(cut, place, tiles, line);
        line += tiles;
        segment.last = line >= line_end ? 1 : 0;
        push(segment, number++);
        if (segment.last != 0) break;
        next_group(place);
      }
    }
    push(Segment{}, number);
  }
};

}  // namespace lehr::kernels::cuda
