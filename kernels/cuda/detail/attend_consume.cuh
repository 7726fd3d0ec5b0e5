// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/detail/attend_merge.cuh"
#include "kernels/cuda/detail/attend_values.cuh"

namespace lehr::kernels::cuda {

/// A consumer warp takes whole tiles: S = K Q^T, softmax, O += V^T P^T. The matrix products take
/// their rows from several blocks at once, with g = lane / 4 and c = lane % 4:
///   S = K Q^T     row g of m-tile i: token 4i + (g & 1) (+2 for row g + 8) of block own(g)
///   O = V^T P^T   slots 2c, 2c+1 of k-step i: the tokens of rows 2c, 2c+1 above, that is of blocks
///                 c and c ^ 2; row g of m-tile t: channel t of the lane's first eight, row g + 8:
///                 of its second
/// A lane's scores all belong to one block, so page sums and page scales cost almost nothing; the
/// transposition between the two products is movmatrix.
template <class F>
struct Consumer {
  using T = typename F::T;
  using Math = Half16<T>;
  static constexpr std::uint32_t kDim = F::kDim, kRowTiles = F::kRowTiles;
  static constexpr std::uint32_t kSteps = kDim / 64;  ///< of K rows: 16 channels a lane
  static constexpr std::uint32_t kDimTiles = kDim / 16;
  static constexpr bool kScaled = F::kForms != PageForms::k16Bit;

  const F& f;
  const AttendArgs& a;
  /// How this form's blocks are stored when each is looked up.
  using Looked = std::conditional_t<
      F::kForms == PageForms::kMixed, StoredAsSaid,
      std::conditional_t<F::kForms == PageForms::kE4m3, StoredAs<Half::kE4m3, Half::kE4m3>,
                         StoredAs<Half::k16Bit, Half::k16Bit>>>;
  const Values<F, Looked> stored;
  std::uint32_t g, c, own;
  std::uint32_t first_row;
  float scale;

  __device__ explicit Consumer(const F& frame)
      : f(frame),
        a(frame.a),
        stored(frame),
        g(frame.lane / 4),
        c(frame.lane % 4),
        own((g >> 1) ^ ((g & 1) << 1)),
        first_row(frame.warp % frame.row_blocks() * 8 * kRowTiles),
        scale(a.p.scale != 0.0F ? a.p.scale : rsqrtf(static_cast<float>(kDim))) {}

  /// Output and softmax of the rows this warp looks after; q holds their queries: lane (g, c) has
  /// channels 64 s + 16 c + 0 .. 15 of row g.
  struct State {
    float o[kRowTiles][kDimTiles][4];
    float m[kRowTiles][2], d[kRowTiles][2];
    uint4 q[kRowTiles][kSteps][2];
    int end[kRowTiles][2];  ///< one past the last token that each of the lane's columns sees
  };

  /// What is the same for all tiles of a segment.
  struct Context {
    std::uint32_t group, length, pages;
  };

  __device__ __forceinline__ void reset(State& s, const Context& x) const {
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      for (std::uint32_t t = 0; t < kDimTiles; ++t) {
        for (float& o : s.o[n][t]) o = 0.0F;
      }
      for (std::uint32_t e = 0; e < 2; ++e) {
        s.m[n][e] = -INFINITY;
        s.d[n][e] = 0.0F;
        const std::uint32_t query = a.ratio.quotient(first_row + 8 * n + 2 * c + e);
        // Signed: a query may stand before the start of a short sequence.
        s.end[n][e] = static_cast<int>(x.length - a.shape.q_len + query + 1);
      }
      const std::uint32_t row = first_row + 8 * n + g;
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const T*>(a.p.q) +
                                                        f.q_row(x.group, row) * kDim);
      for (std::uint32_t i = 0; i < 2 * kSteps; ++i) {
        s.q[n][i / 2][i % 2] =
            row < a.rows ? __ldg(from + 8 * (i / 2) + 2 * c + i % 2) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  struct Scores {
    float x[kRowTiles][4][4];  ///< [row tile][m-tile][row half * 2 + column]
  };

  /// visit(row tile, 4 * m-tile + element, score)
  template <class Visit>
  __device__ __forceinline__ static void for_each(Scores& scores, Visit&& visit) {
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k) visit(n, k, scores.x[n][k / 4][k % 4]);
    }
  }

  __device__ __forceinline__ static void multiply(float (&to)[4], const uint4& upper,
                                                  const uint4& lower, const uint4& q) {
    Math::mma(to, upper.x, lower.x, upper.y, lower.y, q.x, q.y);
    Math::mma(to, upper.z, lower.z, upper.w, lower.w, q.z, q.w);
  }

  template <class As>
  __device__ __forceinline__ void dot_keys(const Values<F, As>& stored, BlockWord block,
                                           const State& s, Scores& scores) const {
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        for (float& x : scores.x[n][i]) x = 0.0F;
      }
    }
    // Steps outside, so that four chains of products run side by side.
#pragma unroll
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto scales = stored.key_scales(block, step);
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const auto upper = stored.keys(block, 4 * i + (g & 1), step, scales);
        const auto lower = stored.keys(block, 4 * i + 2 + (g & 1), step, scales);
#pragma unroll
        for (std::uint32_t n = 0; n < kRowTiles; ++n) {
          multiply(scores.x[n][i], upper.low, lower.low, s.q[n][step][0]);
          multiply(scores.x[n][i], upper.high, lower.high, s.q[n][step][1]);
        }
      }
    }
  }

  /// Scaled logits in log2 units, -inf where a query must not look.
  template <bool kMasked>
  __device__ __forceinline__ void to_logits(Scores& scores, const State& s, float k_scale,
                                            float shift, std::uint32_t position) const {
    constexpr float kLog2e = 1.4426950408889634F;
    const float cap = a.p.soft_cap;
    if (cap > 0) {
      for_each(scores, [&](std::uint32_t, std::uint32_t, float& x) {
        x = fmaf(cap * kLog2e, tanhf(x * k_scale / cap), shift);
      });
    } else {
      for_each(scores, [&](std::uint32_t, std::uint32_t, float& x) {
        x = fmaf(x, k_scale * kLog2e, shift);
      });
    }
    if (!kMasked) return;
    for_each(scores, [&](std::uint32_t n, std::uint32_t k, float& x) {
      const auto seen = static_cast<int>(position + 4 * (k / 4) + 2 * (k % 4 / 2) + (g & 1));
      const int end = s.end[n][k % 2];
      const int from = a.p.window == 0 ? 0 : end - static_cast<int>(a.p.window);
      if (seen >= end || seen < from) x = -INFINITY;
    });
  }

  /// One k-step of O += V^T P^T: two tokens of block c and two of block c ^ 2.
  template <bool kMasked, class As>
  __device__ __forceinline__ void add_values(const Values<F, As>& stored, State& s, std::uint32_t i,
                                             BlockWord near, BlockWord far,
                                             std::uint32_t near_tokens, std::uint32_t far_tokens,
                                             const std::uint32_t (&p)[kRowTiles][4][2]) const {
    constexpr std::uint32_t kPasses = kDim == 64 ? 1 : kDim / 128;
    constexpr std::uint32_t kHalves = kDim == 64 ? 1 : 2;
#pragma unroll
    for (std::uint32_t pass = 0; pass < kPasses; ++pass) {
      auto v0 = stored.values(near, 4 * i, pass), v1 = stored.values(far, 4 * i + 1, pass);
      auto v2 = stored.values(near, 4 * i + 2, pass), v3 = stored.values(far, 4 * i + 3, pass);
      if (kMasked) {  // weights of these are 0, but 0 times what lies there may be NaN
        const decltype(v0) zero{};
        if (4 * i >= near_tokens) v0 = zero;
        if (4 * i + 1 >= far_tokens) v1 = zero;
        if (4 * i + 2 >= near_tokens) v2 = zero;
        if (4 * i + 3 >= far_tokens) v3 = zero;
      }
      std::uint32_t first[kHalves][8], second[kHalves][8];  // tokens 2c, 2c+1; 2c+8, 2c+9
#pragma unroll
      for (std::uint32_t half = 0; half < kHalves; ++half) {
        const uint4 &y0 = half == 0 ? v0.low : v0.high, &y1 = half == 0 ? v1.low : v1.high;
        const uint4 &y2 = half == 0 ? v2.low : v2.high, &y3 = half == 0 ? v3.low : v3.high;
        const std::uint32_t x0[4] = {y0.x, y0.y, y0.z, y0.w}, x1[4] = {y1.x, y1.y, y1.z, y1.w};
        const std::uint32_t x2[4] = {y2.x, y2.y, y2.z, y2.w}, x3[4] = {y3.x, y3.y, y3.z, y3.w};
#pragma unroll
        for (std::uint32_t w = 0; w < 4; ++w) {
          first[half][2 * w] = __byte_perm(x0[w], x1[w], 0x5410);
          first[half][2 * w + 1] = __byte_perm(x0[w], x1[w], 0x7632);
          second[half][2 * w] = __byte_perm(x2[w], x3[w], 0x5410);
          second[half][2 * w + 1] = __byte_perm(x2[w], x3[w], 0x7632);
        }
      }
      // head_dim 64: both row halves come from one eight.
#pragma unroll
      for (std::uint32_t t = 0; t < 4 * kHalves; ++t) {
        constexpr std::uint32_t kUpper = kHalves - 1;
        const std::uint32_t upper = kHalves == 1 ? t + 4 : t;
#pragma unroll
        for (std::uint32_t n = 0; n < kRowTiles; ++n) {
          Math::mma(s.o[n][8 * pass + t], first[0][t], first[kUpper][upper], second[0][t],
                    second[kUpper][upper], p[n][i][0], p[n][i][1]);
        }
      }
    }
  }

  /// First channel of the four that elements t .. t + 3 of a row half hold.
  __device__ std::uint32_t channel(std::uint32_t t, std::uint32_t half) const {
    if (kDim == 64) return 8 * g + 4 * half + t;
    return 128 * (t / 8) + 16 * g + 8 * half + t % 8;
  }

  __device__ __forceinline__ void write_pairs(const Context& x, const float (&m)[2],
                                              const float (&sum)[2], std::uint32_t row,
                                              std::size_t list_position) const {
    const std::uint32_t block_shift = a.page_shift - 4;
    const std::size_t page = list_position + (own >> block_shift);
    // One lane a page and pair of rows: even rows of the first block hold the sum of their page.
    if ((g & 1) != 0 || (own & ((1U << block_shift) - 1)) != 0 || page >= x.pages) return;
    const std::uint32_t rows = a.rows;
    if (row >= rows) return;
    const std::size_t pitch = a.p.selection != nullptr ? a.p.selection_pitch : a.shape.max_pages;
    SoftmaxPair* to = a.p.pairs + (x.group * pitch + page) * rows + row;
    if (row + 1 < rows && rows % 2 == 0) {
      store_kept(to, make_float4(m[0], sum[0], m[1], sum[1]));
    } else {
      to[0] = {m[0], sum[0]};
      if (row + 1 < rows) to[1] = {m[1], sum[1]};
    }
  }

  /// Takes the tile's greatest logits into the state and returns what weights are measured against.
  __device__ __forceinline__ void raise_maximum(State& s, std::uint32_t n, const Scores& scores,
                                                float (&reference)[2]) const {
    float top[2] = {-INFINITY, -INFINITY};
    bool moved = false;
#pragma unroll
    for (std::uint32_t k = 0; k < 16; ++k)
      top[k % 2] = fmaxf(top[k % 2], scores.x[n][k / 4][k % 4]);
#pragma unroll
    for (std::uint32_t e = 0; e < 2; ++e) {
      top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 20));
      top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 8));
      top[e] = fmaxf(top[e], __shfl_xor_sync(~0U, top[e], 16));
      top[e] = fmaxf(top[e], s.m[n][e]);
      moved = moved || top[e] != s.m[n][e];
      reference[e] = top[e] == -INFINITY ? 0.0F : top[e];
    }
    if (!__any_sync(~0U, moved)) return;
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

  template <bool kMasked, class As>
  __device__ __forceinline__ void tile(State& s, const TileNote& note, const Context& x,
                                       std::size_t list_position) const {
    const Values<F, As> stored(this->stored);
    const BlockWord key_block = note.block[own];
    float2 scales = make_float2(1.0F, 1.0F);
    // An absent block's bytes are whatever was there before.
    if (kScaled && !(kMasked && note.position[own] >= kNowhere))
      scales = stored.scales_of(key_block);
    const float shift = kScaled ? __log2f(scales.y) : 0.0F;  // V's scale rides on the weights

    Scores scores;
    dot_keys(stored, key_block, s, scores);
    to_logits<kMasked>(scores, s, scale * scales.x, shift, note.position[own]);

    std::uint32_t p[kRowTiles][4][2];
#pragma unroll
    for (std::uint32_t n = 0; n < kRowTiles; ++n) {
      float sum[2] = {0.0F, 0.0F}, reference[2];
      raise_maximum(s, n, scores, reference);
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
      if (kPageSums && a.p.pairs != nullptr) {
        float m[2];
        for (std::uint32_t e = 0; e < 2; ++e) {
          sum[e] += __shfl_xor_sync(~0U, sum[e], 20);
          if (a.shape.page_tokens >= 32) sum[e] += __shfl_xor_sync(~0U, sum[e], 8);
          if (a.shape.page_tokens >= 64) sum[e] += __shfl_xor_sync(~0U, sum[e], 16);
          m[e] = sum[e] == 0.0F ? -INFINITY : reference[e] - shift;
        }
        write_pairs(x, m, sum, first_row + 8 * n + 2 * c, list_position);
      }
    }

    const auto tokens_of = [&](std::uint32_t block) {
      const std::uint32_t start = note.position[block];
      return x.length > start ? x.length - start : 0U;
    };
    const std::uint32_t near_tokens = kMasked ? tokens_of(c) : 16U;
    const std::uint32_t far_tokens = kMasked ? tokens_of(c ^ 2) : 16U;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      add_values<kMasked>(stored, s, i, note.block[c], note.block[c ^ 2], near_tokens, far_tokens,
                          p);
    }
  }

  /// A tile without a mask. Where all of a mixed form's blocks are stored alike, as they mostly
  /// are, looking that up once is far cheaper than for every load.
  __device__ __forceinline__ void whole_tile(State& s, const TileNote& note, const Context& x,
                                             std::size_t position) const {
    if constexpr (F::kForms == PageForms::kMixed) {
      const std::uint32_t said = note.block[c].word & 15U;
      constexpr std::uint32_t kInt8 = 2, kE4m3 = 1;
      if (__all_sync(~0U, said == (kInt8 | kInt8 << 2)))
        return tile<false, StoredAs<Half::kInt8, Half::kInt8>>(s, note, x, position);
      if (__all_sync(~0U, said == kInt8 << 2))
        return tile<false, StoredAs<Half::k16Bit, Half::kInt8>>(s, note, x, position);
      if (__all_sync(~0U, said == (kE4m3 | kE4m3 << 2)))
        return tile<false, StoredAs<Half::kE4m3, Half::kE4m3>>(s, note, x, position);
      if (__all_sync(~0U, said == 0))
        return tile<false, StoredAs<Half::k16Bit, Half::k16Bit>>(s, note, x, position);
    }
    tile<false, Looked>(s, note, x, position);
  }

  __device__ bool needs_mask(const TileNote& note, std::uint32_t length) const {
    const std::uint32_t position = note.position[c];
    const std::uint32_t seen_by_all = length - a.shape.q_len + 1;
    bool partial = length < a.shape.q_len || position + kBlockTokens > seen_by_all;
    if (a.p.window != 0) partial = partial || position + a.p.window < length;
    return __any_sync(~0U, partial);
  }

  /// Writes blocks that came over a link where they are to live in HBM from now on.
  __device__ void start_installs(const TileNote& note) const {
    for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
      if (note.install[b] == 0) continue;
      const std::uint32_t sub = (note.position[b] & (a.shape.page_tokens - 1)) / kBlockTokens;
      const std::uint32_t from = shared_address(f.smem) + note.block[b].offset();
      const typename F::Parts parts{stored.k_of(note.block[b]), stored.v_of(note.block[b])};
      // Blocks of a page that share scales all write them: the same bytes.
      parts.each(a.page_shift - 4, sub,
                 [&](std::uint32_t in_block, std::uint32_t in_page, std::uint32_t bytes) {
                   bulk_store(note.install[b] + in_page, from + in_block, bytes);
                 });
    }
  }

  __device__ void await(const TileNote& note) const {
#pragma unroll
    for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
      const HostWord host = note.host[b];
      if (host.used()) barrier_wait(f.at(f.control.host_full[host.slot()]), host.parity());
    }
  }

  /// One lane gives the tile's memory back.
  __device__ void release(const TileNote& note, std::uint32_t stage) const {
#pragma unroll
    for (std::uint32_t b = 0; b < kTileBlocks; ++b) {
      const HostWord host = note.host[b];
      if (host.used()) barrier_arrive(f.at(f.control.host_empty[host.slot()]));
    }
    barrier_arrive(f.at(f.control.empty[stage]));
  }

  /// The running number of a tile that no other warp has taken.
  __device__ std::uint32_t take_tile(std::uint32_t row_block) const {
    std::uint32_t tile = 0;
    if (f.lane == 0) tile = atomicAdd(&f.control.next_tile[row_block], 1U);
    return __shfl_sync(~0U, tile, 0);
  }

  __device__ __forceinline__ void run() const {
    const std::uint32_t sharing = a.warps_of_row_block;
    const std::uint32_t row_block = f.warp % f.row_blocks(), turn = f.warp / f.row_blocks();
    const std::uint32_t pages_a_tile = a.pages_a_tile();
    const bool installs = a.p.installs != nullptr && row_block == 0;
    std::uint32_t tiles_done = 0;
    [[maybe_unused]] std::uint32_t taken = kFixedOrder ? 0 : take_tile(row_block);
    for (std::uint32_t number = 0;; ++number) {
      const Segment segment = f.pop_segment(number);
      if (segment.tiles == 0) break;
      const Context x{segment.group, __ldg(a.p.lengths + a.sequence_of(segment.group)),
                      segment.pages};
      State state;
      reset(state, x);
      const auto first = [&] { return kFixedOrder ? turn : taken - tiles_done; };
      const auto next = [&](std::uint32_t j) {
        if (kFixedOrder) return j + sharing;
        taken = take_tile(row_block);
        return taken - tiles_done;
      };
      for (std::uint32_t j = first(); j < segment.tiles; j = next(j)) {
        const auto at = F::ring_place(a.stages, tiles_done + j);
        TileNote& note = f.control.notes[at.place];
        // A parity tells a phase from its neighbours only, and this warp may come more than one
        // phase early or late: so first see that the stage has been given to this tile.
        if (f.lane == 0) {
          while (atomicAdd(&note.tile, 0U) != at.number) __nanosleep(20);
        }
        __syncwarp();
        barrier_wait(f.at(f.control.full[at.place]), at.parity);
        if constexpr (kBulkCopy) await(note);
        __syncwarp();
        if (installs && f.lane == 0) start_installs(note);
        const std::size_t position = std::size_t{segment.first + j} * pages_a_tile;
        if (needs_mask(note, x.length)) {
          tile<true, Looked>(state, note, x, position);
        } else {
          whole_tile(state, note, x, position);
        }
        __syncwarp();
        if (f.lane == 0) {
          if (installs) bulk_store_read();
          release(note, at.place);
        }
      }
      tiles_done += segment.tiles;
      leave_for_merger(state, number, !kFixedOrder || turn < segment.tiles);
      if constexpr (kConsumersMerge<F>) {
        if (segment.last != 0) Merger<F>{f}.finish(segment, number, ConsumerCrew<F>(f));
      }
    }
    if (a.p.installs != nullptr && f.lane == 0) bulk_store_done();
  }

  /// Writes what this warp has of a segment where the merger finds it.
  __device__ __forceinline__ void leave_for_merger(const State& state, std::uint32_t number,
                                                   bool had_tiles) const {
    barrier_wait(f.at(f.control.flush_empty), (number + 1) & 1);
    __syncwarp();
    if (!had_tiles) {
      barrier_arrive(f.at(f.control.flush_full));
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
        if (row >= f.rows_a_warp()) continue;
        if (g == 0) {
          f.flushed_pair(f.warp, row)[0] = state.m[n][e];
          f.flushed_pair(f.warp, row)[1] = d;
        }
#pragma unroll
        for (std::uint32_t t = 0; t < kDimTiles; t += 4) {
#pragma unroll
          for (std::uint32_t half = 0; half < 2; ++half) {
            *reinterpret_cast<float4*>(f.flushed_values(f.warp, row) + channel(t, half)) =
                make_float4(state.o[n][t][2 * half + e], state.o[n][t + 1][2 * half + e],
                            state.o[n][t + 2][2 * half + e], state.o[n][t + 3][2 * half + e]);
          }
        }
      }
    }
    barrier_arrive(f.at(f.control.flush_full));
  }
};

}  // namespace lehr::kernels::cuda
