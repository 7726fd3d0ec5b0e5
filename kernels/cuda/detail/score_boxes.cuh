// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/mma.cuh"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/score.hpp"

/// Scores of pages by tensor-core products of their boxes with two weight vectors of each query
/// row: the sum over channels of low * w_low + high * w_high is the score.
namespace lehr::kernels::cuda {

inline constexpr std::uint32_t kScoreWarps = 8;
inline constexpr std::uint32_t kPagesAWarp = 16;
inline constexpr std::uint32_t kMaxBlocks = kMaxPages / 16;

/// Shared memory of a CTA that scores, in this order: a slot of boxes for each warp, the weights,
/// sums of |q|.
__host__ __device__ constexpr std::uint32_t score_slot_bytes(std::uint32_t dim) {
  return kPagesAWarp * dim * 4;
}
__host__ __device__ constexpr std::uint32_t score_bytes(std::uint32_t dim, std::uint32_t rows,
                                                        bool slots) {
  const std::uint32_t row_blocks = (rows + 7) / 8;
  return (slots ? kScoreWarps * score_slot_bytes(dim) : 0) +
         row_blocks * (dim / 32 * 64 * 16 + 8 * 4);
}

struct ScoreShared {
  std::uint64_t full[kScoreWarps];
  std::uint32_t listed[kMaxBlocks / 32];  ///< a bit a block
};

template <class T, std::uint32_t kDim>
class BoxScorer {
  using Math = Half16<T>;
  static constexpr std::uint32_t kSteps = kDim / 64;  ///< 16 channels of a lane
  static constexpr std::uint32_t kRowBytes = kDim * 4;

 public:
  __device__ BoxScorer(const StepShape& shape, const ScoreParams& p, std::uint32_t group,
                       std::uint32_t pages, ScoreShared& shared, unsigned char* memory)
      : shape_(shape),
        p_(p),
        group_(group),
        pages_(pages),
        shared_(shared),
        slot_(memory + threadIdx.x / 32 * score_slot_bytes(kDim)),
        ends_(reinterpret_cast<uint4*>(memory +
                                       (kBulkCopy ? kScoreWarps * score_slot_bytes(kDim) : 0))),
        absolute_(reinterpret_cast<float*>(ends_ + (shape.rows() + 7) / 8 * (kDim / 32) * 64)),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        c_(lane_ % 4) {}

  /// All threads: scores pages [first, end); warps take 16 at a time. sink(page, score) is called
  /// once a page.
  template <class Sink>
  __device__ void run(std::uint32_t first, std::uint32_t end, Sink&& sink) {
    constexpr std::uint32_t kStride = kScoreWarps * kPagesAWarp;
    if (kBulkCopy && lane_ == 0) {  // nobody else waits on this warp's barrier
      barrier_init(shared_address(&shared_.full[threadIdx.x / 32]), 1);
      barrier_init_fence();
    }
    if (p_.blocks != nullptr) mark_blocks();
    std::uint32_t page = next(first + threadIdx.x / 32 * kPagesAWarp, end, sink);
    __syncwarp();
    start(page, end);  // the first boxes come while queries are made ready
    prepare_queries();
    __syncthreads();
    while (page < end) {
      Fragments f;
      load(page, end, f);
      // The slot is in registers: the next boxes may come while these are worked on.
      const std::uint32_t following = next(page + kStride, end, sink);
      __syncwarp();
      start(following, end);
      score(page, end, f, sink);
      page = following;
    }
  }

 private:
  /// Boxes of pages page + g (0) and page + g + 8 (1): [low, high][step][first eight, second].
  struct Fragments {
    uint4 x[2][2][kSteps][2];
  };

  /// All threads: a bit for each listed block.
  __device__ void mark_blocks() const {
    const std::uint32_t blocks = (pages_ + p_.block_pages - 1) / p_.block_pages;
    for (std::uint32_t i = threadIdx.x; i < (blocks + 31) / 32; i += blockDim.x)
      shared_.listed[i] = 0;
    __syncthreads();
    const std::uint32_t* list = p_.blocks + std::size_t{group_} * p_.block_pitch;
    const std::uint32_t n = p_.block_counts[group_];
    for (std::uint32_t i = threadIdx.x; i < n && i < p_.block_pitch; i += blockDim.x) {
      if (list[i] < blocks) atomicOr(&shared_.listed[list[i] / 32], 1U << list[i] % 32);
    }
    __syncthreads();
  }

  /// The first of this warp's places at or after `page` whose block is listed; others get -inf.
  template <class Sink>
  __device__ std::uint32_t next(std::uint32_t page, std::uint32_t end, Sink& sink) const {
    for (; page < end; page += kScoreWarps * kPagesAWarp) {
      if (p_.blocks == nullptr) return page;
      const std::uint32_t block = page / p_.block_pages;
      if ((shared_.listed[block / 32] >> block % 32 & 1U) != 0) return page;
      if (lane_ < kPagesAWarp && page + lane_ < end) sink(page + lane_, -INFINITY);
    }
    return page;
  }

  __device__ const unsigned char* boxes_of(std::uint32_t page) const {
    return static_cast<const unsigned char*>(p_.boxes) +
           (std::size_t{group_} * shape_.max_pages + page) * kRowBytes;
  }

  __device__ void start(std::uint32_t page, std::uint32_t end) const {
    if constexpr (kBulkCopy) {
      if (lane_ != 0 || page >= end) return;
      const std::uint32_t n = page + kPagesAWarp < end ? kPagesAWarp : end - page;
      const std::uint32_t barrier = shared_address(&shared_.full[threadIdx.x / 32]);
      // What was read from the slot by ordinary loads is written by the copy engine next.
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      begin_fill(barrier, n * kRowBytes);
      bulk_load(shared_address(slot_), reinterpret_cast<std::uint64_t>(boxes_of(page)),
                n * kRowBytes, barrier);
    }
  }

  __device__ void load(std::uint32_t page, std::uint32_t end, Fragments& f) {
    if constexpr (kBulkCopy) {
      barrier_wait(shared_address(&shared_.full[threadIdx.x / 32]), parity_);
      parity_ ^= 1;
    }
    // Odd rows start with the second eight channels: rows lie in the same banks. The compiler must
    // not see that they are swapped back.
    std::uint32_t turn = 0U - (g_ & 1);
    asm("" : "+r"(turn));
#pragma unroll
    for (std::uint32_t h = 0; h < 2; ++h) {
      const std::uint32_t row = page + g_ + 8 * h < end ? g_ + 8 * h : end - 1 - page;
      const unsigned char* from = kBulkCopy ? slot_ + row * kRowBytes : boxes_of(page + row);
#pragma unroll
      for (std::uint32_t side = 0; side < 2; ++side) {
#pragma unroll
        for (std::uint32_t s = 0; s < kSteps; ++s) {
          const unsigned char* at = from + side * kDim * 2 + 128 * s + 32 * c_;
          f.x[h][side][s][0] = *reinterpret_cast<const uint4*>(at + (16U & turn));
          f.x[h][side][s][1] = *reinterpret_cast<const uint4*>(at + (16U & ~turn));
        }
      }
    }
#pragma unroll
    for (auto& page_of : f.x) {
      for (auto& side : page_of) {
        for (auto& step : side) {
          swap(step[0].x, step[1].x, turn);
          swap(step[0].y, step[1].y, turn);
          swap(step[0].z, step[1].z, turn);
          swap(step[0].w, step[1].w, turn);
        }
      }
    }
  }
  static __device__ __forceinline__ void swap(std::uint32_t& a, std::uint32_t& b,
                                              std::uint32_t turn) {
    const std::uint32_t x = (a & ~turn) | (b & turn);
    b = (b & ~turn) | (a & turn);
    a = x;
  }

  /// The larger magnitudes of two pairs of 16-bit values; of positive floats the bits are in order
  /// too.
  static __device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    return __vmaxu2(a & 0x7FFF7FFFU, b);
  }

  /// The greatest magnitude in the two boxes.
  __device__ float peak_of(const Fragments& f, std::uint32_t h) const {
    std::uint32_t most = 0;
#pragma unroll
    for (const auto& side : f.x[h]) {
      for (const auto& step : side) {
        for (const uint4& e : step) most = larger(e.x, larger(e.y, larger(e.z, larger(e.w, most))));
      }
    }
    const float2 both = Math::unpack(most);
    float peak = fmaxf(both.x, both.y);
    peak = fmaxf(peak, __shfl_xor_sync(~0U, peak, 1));
    return fmaxf(peak, __shfl_xor_sync(~0U, peak, 2));
  }

  template <class Sink>
  __device__ void score(std::uint32_t page, std::uint32_t end, const Fragments& f,
                        Sink& sink) const {
    // Tensor cores cut digits: 16 to 32 sums of 17 terms, each off by at most 2^-23 of what they
    // can reach.
    const float slack = p_.spread == 1.0F ? 0x1p-15F : 0.0F;
    const float peak[2] = {peak_of(f, 0) * slack, peak_of(f, 1) * slack};
    float best[2] = {-INFINITY, -INFINITY};
    bool nan[2] = {false, false};
    for (std::uint32_t n = 0; n * 8 < shape_.rows(); ++n) {
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (std::uint32_t s = 0; s < kSteps; ++s) {
#pragma unroll
        for (std::uint32_t side = 0; side < 2; ++side) {
#pragma unroll
          for (std::uint32_t e = 0; e < 2; ++e) {
            const uint4 w = ends_[(((n * kSteps + s) * 2 + side) * 2 + e) * 32 + lane_];
            const uint4 &upper = f.x[0][side][s][e], &lower = f.x[1][side][s][e];
            Math::mma(sums, upper.x, lower.x, upper.y, lower.y, w.x, w.y);
            Math::mma(sums, upper.z, lower.z, upper.w, lower.w, w.z, w.w);
          }
        }
      }
#pragma unroll
      for (std::uint32_t k = 0; k < 4; ++k) {
        // 0 times an infinite peak must not turn a score into NaN where there is no slack.
        const float raised =
            slack == 0.0F ? sums[k] : sums[k] + absolute_[8 * n + 2 * c_ + k % 2] * peak[k / 2];
        nan[k / 2] = nan[k / 2] || isnan(raised);
        best[k / 2] = fmaxf(best[k / 2], raised);
      }
    }
#pragma unroll
    for (std::uint32_t h = 0; h < 2; ++h) {
      if (nan[h]) best[h] = INFINITY;  // must not hide a page
      best[h] = fmaxf(best[h], __shfl_xor_sync(~0U, best[h], 1));
      best[h] = fmaxf(best[h], __shfl_xor_sync(~0U, best[h], 2));
      const std::uint32_t at = page + g_ + 8 * h;
      if (c_ == 0 && at < end) sink(at, best[h]);
    }
  }

  /// A weight for each end of a box.
  static __device__ __forceinline__ void end_weights(std::uint32_t q2, float outer, float inner,
                                                     std::uint32_t& low, std::uint32_t& high) {
    const float2 q = Math::unpack(q2);
    const float2 up = make_float2(fmaxf(q.x, 0.0F), fmaxf(q.y, 0.0F));
    const float2 down = make_float2(fminf(q.x, 0.0F), fminf(q.y, 0.0F));
    high = Math::pack(up.x * outer + down.x * inner, up.y * outer + down.y * inner);
    low = Math::pack(down.x * outer + up.x * inner, down.y * outer + up.y * inner);
  }

  /// Warp n prepares row block n, n + warps, ...; rows past the end repeat the last one, which
  /// changes no maximum.
  __device__ void prepare_queries() const {
    const std::uint32_t ratio = shape_.ratio(), rows = shape_.rows();
    const float outer = (1.0F + p_.spread) / 2, inner = (1.0F - p_.spread) / 2;
    for (std::uint32_t n = threadIdx.x / 32; n * 8 < rows; n += kScoreWarps) {
      const std::uint32_t row = n * 8 + g_ < rows ? n * 8 + g_ : rows - 1;
      const std::size_t head = group_ % shape_.kv_heads * ratio + row % ratio;
      const std::size_t query = group_ / shape_.kv_heads * std::size_t{shape_.q_len} + row / ratio;
      const auto* q = reinterpret_cast<const uint4*>(static_cast<const T*>(p_.q) +
                                                     (query * shape_.q_heads + head) * kDim);
      float weight = 0.0F;
#pragma unroll
      for (std::uint32_t i = 0; i < 2 * kSteps; ++i) {
        const std::uint32_t s = i / 2, e = i % 2;
        const uint4 x = __ldg(q + 8 * s + 2 * c_ + e);
        uint4 low, high;
        end_weights(x.x, outer, inner, low.x, high.x);
        end_weights(x.y, outer, inner, low.y, high.y);
        end_weights(x.z, outer, inner, low.z, high.z);
        end_weights(x.w, outer, inner, low.w, high.w);
        ends_[(((n * kSteps + s) * 2) * 2 + e) * 32 + lane_] = low;
        ends_[(((n * kSteps + s) * 2 + 1) * 2 + e) * 32 + lane_] = high;
        for (const std::uint32_t w : {x.x, x.y, x.z, x.w}) {
          const float2 f = Math::unpack(w);
          weight += fabsf(f.x) + fabsf(f.y);
        }
      }
      weight += __shfl_xor_sync(~0U, weight, 1);
      weight += __shfl_xor_sync(~0U, weight, 2);
      if (c_ == 0) absolute_[n * 8 + g_] = weight;
    }
  }

  const StepShape& shape_;
  const ScoreParams& p_;
  std::uint32_t group_, pages_;
  ScoreShared& shared_;
  unsigned char* slot_;
  uint4* ends_;      ///< [row block][step][low, high][first eight, second][lane]
  float* absolute_;  ///< [row]
  std::uint32_t lane_, g_, c_;
  std::uint32_t parity_ = 0;
};

}  // namespace lehr::kernels::cuda
