// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/cuda/detail/attend_layout.cuh"
#include "kernels/cuda/detail/mma.cuh"

namespace lehr::kernels::cuda {

/// A part of one row's output, four channels: weights are d * 2^m, o is their sum of V.
struct PartialRow {
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

/// Adds up the consumers of each segment in order, one warp, while they go on with the next. A
/// group that lies in several segments goes through memory, and whoever finishes last adds up its
/// segments in order.
template <class F>
struct Merger {
  static constexpr std::uint32_t kQuads = F::kQuads;
  static constexpr std::uint32_t kSideBySide = 4;  ///< sums a lane carries at once, to hide latency
  const F& f;

  __device__ void write_final(std::uint32_t group, std::uint32_t row, std::uint32_t dim,
                              const PartialRow& r) const {
    const float inverse = r.d == 0.0F ? 0.0F : 1.0F / r.d;  // nothing to see: zeros, not NaN
    uint2 packed;
    packed.x = Half16<typename F::T>::pack(r.o.x * inverse, r.o.y * inverse);
    packed.y = Half16<typename F::T>::pack(r.o.z * inverse, r.o.w * inverse);
    *reinterpret_cast<uint2*>(f.out_row(group, row) + dim) = packed;
    if (dim == 0 && f.a.p.totals != nullptr) {
      f.a.p.totals[std::size_t{group} * f.a.rows + row] = {r.m, r.d};
    }
  }

  __device__ void run() const {
    const std::uint32_t rows = f.a.rows, row_blocks = f.row_blocks();
    for (std::uint32_t number = 0;; ++number) {
      const Segment segment = f.pop_segment(number);
      if (segment.tiles == 0) return;
      const bool whole = segment.segments == 1;
      barrier_wait(f.at(f.control.flush_full), number & 1);
      for (std::uint32_t x0 = f.lane; x0 < rows * kQuads; x0 += 32 * kSideBySide) {
        PartialRow sum[kSideBySide];
        for (std::uint32_t w = 0; w < f.a.warps_of_row_block && w < segment.tiles; ++w) {
#pragma unroll
          for (std::uint32_t k = 0; k < kSideBySide; ++k) {
            const std::uint32_t x = x0 + 32 * k, row = x / kQuads, dim = x % kQuads * 4;
            if (row >= rows) continue;
            const std::uint32_t from = row / (8 * F::kRowTiles) + w * row_blocks,
                                local = row % (8 * F::kRowTiles);
            sum[k].add(f.flushed_pair(from, local)[0], f.flushed_pair(from, local)[1],
                       *reinterpret_cast<const float4*>(f.flushed_values(from, local) + dim));
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
            *reinterpret_cast<float4*>(f.a.partial_values + at_row * F::kDim + dim) = sum[k].o;
            if (dim == 0) f.a.partial_pairs[at_row] = {sum[k].m, sum[k].d};
          }
        }
      }
      barrier_arrive(f.at(f.control.flush_empty));
      if (!whole) merge_segments(segment);
    }
  }

  __device__ void merge_segments(const Segment& segment) const {
    __syncwarp();
    std::uint32_t last = 0;
    if (f.lane == 0) {
      last = take_ticket(f.a.tickets + segment.group) == segment.segments - 1 ? 1 : 0;
      if (last != 0) f.a.tickets[segment.group] = 0;
    }
    if (__shfl_sync(~0U, last, 0) == 0) return;
    __syncwarp();
    const std::uint32_t rows = f.a.rows;
    for (std::uint32_t x0 = f.lane; x0 < rows * kQuads; x0 += 32 * kSideBySide) {
      PartialRow sum[kSideBySide];
#pragma unroll 4
      for (std::uint32_t i = 0; i < segment.segments; ++i) {
#pragma unroll
        for (std::uint32_t k = 0; k < kSideBySide; ++k) {
          const std::uint32_t x = x0 + 32 * k, row = x / kQuads < rows ? x / kQuads : 0,
                              dim = x % kQuads * 4;
          const std::size_t at_row = std::size_t{segment.first_slot + i} * rows + row;
          const float2 pair = __ldcg(reinterpret_cast<const float2*>(f.a.partial_pairs + at_row));
          sum[k].add(
              pair.x, pair.y,
              __ldcg(reinterpret_cast<const float4*>(f.a.partial_values + at_row * F::kDim + dim)));
        }
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kSideBySide; ++k) {
        const std::uint32_t x = x0 + 32 * k;
        if (x < rows * kQuads) write_final(segment.group, x / kQuads, x % kQuads * 4, sum[k]);
      }
    }
  }
};

}  // namespace lehr::kernels::cuda
