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

  /// What a part measured against m2 must be scaled by to be measured against `top`.
  static __device__ float factor(float m2, float d2, float top) {
    // A part that is all NaN has m -inf too and must show: only an empty one may be scaled away.
    if (m2 == -INFINITY) return d2 == 0.0F ? 0.0F : 1.0F;
    return exp2_fast(m2 - top);
  }
  __device__ void take(const PartialRow& x, float by) {
    d += x.d * by;
    o.x += x.o.x * by;
    o.y += x.o.y * by;
    o.z += x.o.z * by;
    o.w += x.o.w * by;
  }
  /// Adds up to kParts others, in order. Empty parts, (-inf, 0), change nothing.
  template <std::uint32_t kParts>
  __device__ void add(const PartialRow (&parts)[kParts]) {
    float top = m;
#pragma unroll
    for (const PartialRow& x : parts) top = fmaxf(top, x.m);
    PartialRow sum;
    sum.m = top;
    sum.take(*this, factor(m, d, top));
#pragma unroll
    for (const PartialRow& x : parts) sum.take(x, factor(x.m, x.d, top));
    *this = sum;
  }
};

/// Who adds up: one warp, while the consumers go on with the next segment.
template <class F>
struct WarpCrew {
  static constexpr std::uint32_t kThreads = 32;
  std::uint32_t thread;
  __device__ explicit WarpCrew(const F& f) : thread(f.lane) {}
  __device__ void sync() const { __syncwarp(); }
  __device__ std::uint32_t of_first(std::uint32_t x) const {
    x = __shfl_sync(~0U, x, 0);
    __syncwarp();
    return x;
  }
};

/// Whether consumers add up the last segment. The mixed form has no registers to spare for it.
template <class F>
inline constexpr bool kConsumersMerge = F::kForms != PageForms::kMixed;

/// Or all consumers together, after their last tile: what they wait for then, all wait for.
template <class F>
struct ConsumerCrew {
  static constexpr std::uint32_t kThreads = 32 * F::kConsumerWarps;
  const F& f;
  std::uint32_t thread;
  __device__ explicit ConsumerCrew(const F& frame) : f(frame), thread(threadIdx.x) {}
  __device__ void sync() const { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }
  __device__ std::uint32_t of_first(std::uint32_t x) const {
    if (thread == 0) f.control.crew_word = x;
    sync();
    return *const_cast<const volatile std::uint32_t*>(&f.control.crew_word);
  }
};

/// Adds up the consumers of each segment in order. A
/// group that lies in several segments goes through memory, and whoever finishes last adds up its
/// segments in order.
template <class F>
struct Merger {
  static constexpr std::uint32_t kQuads = F::kQuads;
  static constexpr std::uint32_t kParts = 4;  ///< loaded at once, to hide latency
  const F& f;

  __device__ __forceinline__ void write_final(std::uint32_t group, std::uint32_t row,
                                              std::uint32_t dim, const PartialRow& r) const {
    const float inverse = r.d == 0.0F ? 0.0F : 1.0F / r.d;  // nothing to see: zeros, not NaN
    uint2 packed;
    packed.x = Half16<typename F::T>::pack(r.o.x * inverse, r.o.y * inverse);
    packed.y = Half16<typename F::T>::pack(r.o.z * inverse, r.o.w * inverse);
    *reinterpret_cast<uint2*>(f.out_row(group, row) + dim) = packed;
    if (dim == 0 && f.a.p.totals != nullptr) {
      f.a.p.totals[std::size_t{group} * f.a.rows + row] = {r.m, r.d};
    }
  }

  /// The sum over the warps that shared a row's tiles.
  __device__ PartialRow of_consumers(std::uint32_t row, std::uint32_t dim, std::uint32_t warps,
                                     std::uint32_t row_blocks) const {
    const std::uint32_t first = row / (8 * F::kRowTiles), local = row % (8 * F::kRowTiles);
    PartialRow sum;
#pragma unroll
    for (std::uint32_t w0 = 0; w0 < F::kConsumerWarps; w0 += kParts) {
      PartialRow parts[kParts];
#pragma unroll
      for (std::uint32_t k = 0; k < kParts; ++k) {
        if (w0 + k >= warps) continue;
        const std::uint32_t from = first + (w0 + k) * row_blocks;
        const auto pair = *reinterpret_cast<const float2*>(f.flushed_pair(from, local));
        parts[k] = {pair.x, pair.y,
                    *reinterpret_cast<const float4*>(f.flushed_values(from, local) + dim)};
      }
      if (w0 < warps) sum.add(parts);
    }
    return sum;
  }

  /// The sum over a group's segments.
  __device__ PartialRow of_segments(const Segment& segment, std::uint32_t row,
                                    std::uint32_t dim) const {
    PartialRow sum;
    for (std::uint32_t i0 = 0; i0 < segment.segments; i0 += kParts) {
      PartialRow parts[kParts];
#pragma unroll
      for (std::uint32_t k = 0; k < kParts; ++k) {
        if (i0 + k >= segment.segments) continue;
        const std::size_t at = std::size_t{segment.first_slot + i0 + k} * f.a.rows + row;
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(f.a.partial_pairs + at));
        parts[k] = {
            pair.x, pair.y,
            __ldcg(reinterpret_cast<const float4*>(f.a.partial_values + at * F::kDim + dim))};
      }
      sum.add(parts);
    }
    return sum;
  }

  /// Adds up what the consumers left of a segment, and, where this was a group's last part to come,
  /// the group.
  template <class Crew>
  __device__ __forceinline__ void finish(const Segment& segment, std::uint32_t number,
                                         const Crew& crew) const {
    const std::uint32_t rows = f.a.rows, row_blocks = f.row_blocks();
    const bool whole = segment.segments == 1;
    barrier_wait(f.at(f.control.flush_full), number & 1);
    const std::uint32_t warps = !kFixedOrder || f.a.warps_of_row_block < segment.tiles
                                    ? f.a.warps_of_row_block
                                    : segment.tiles;
#pragma unroll 2
    for (std::uint32_t x = crew.thread; x < rows * kQuads; x += Crew::kThreads) {
      const std::uint32_t row = x / kQuads, dim = x % kQuads * 4;
      const PartialRow sum = of_consumers(row, dim, warps, row_blocks);
      if (whole) {
        write_final(segment.group, row, dim, sum);
      } else {
        const std::size_t at_row = std::size_t{segment.slot} * rows + row;
        *reinterpret_cast<float4*>(f.a.partial_values + at_row * F::kDim + dim) = sum.o;
        if (dim == 0) f.a.partial_pairs[at_row] = {sum.m, sum.d};
      }
    }
    if (Crew::kThreads == 32) barrier_arrive(f.at(f.control.flush_empty));
    if (!whole) merge_segments(segment, crew);
  }

  /// All segments, but where they do it themselves a CTA's last, whose consumers have nothing else
  /// to do any more.
  __device__ void run() const {
    for (std::uint32_t number = 0;; ++number) {
      const Segment segment = f.pop_segment(number);
      if (segment.tiles == 0 || (kConsumersMerge<F> && segment.last != 0)) return;
      finish(segment, number, WarpCrew<F>(f));
    }
  }

 private:
  /// The crew that comes last writes the group's result.
  template <class Crew>
  __device__ __forceinline__ void merge_segments(const Segment& segment, const Crew& crew) const {
    crew.sync();
    std::uint32_t last = 0;
    if (crew.thread == 0) {
      last = take_ticket(f.a.tickets + segment.group) == segment.segments - 1 ? 1 : 0;
      if (last != 0) f.a.tickets[segment.group] = 0;
    }
    if (crew.of_first(last) == 0) return;
#pragma unroll 4
    for (std::uint32_t x = crew.thread; x < f.a.rows * kQuads; x += Crew::kThreads) {
      const std::uint32_t row = x / kQuads, dim = x % kQuads * 4;
      write_final(segment.group, row, dim, of_segments(segment, row, dim));
    }
  }
};

}  // namespace lehr::kernels::cuda
