// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/attend.hpp"

/// How a launch's work is cut. The tiles (64 tokens of one group's list) of all groups, in order, are one line of
/// `total` tiles. Its first `fixed` tiles are cut evenly into one piece a CTA; the rest into small pieces handed out
/// at run time. Where a piece crosses groups it is cut further into segments. All cuts follow from lengths and the
/// grid alone, never from where pages lie or who came first: that is what makes the output bit-identical.
namespace lehr::kernels::cuda {

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint32_t kTileTokens = 64;
inline constexpr std::uint32_t kTileBlocks = kTileTokens / kBlockTokens;

struct AttendArgs {
  StepShape shape;
  AttendParams p;
  float* partial_values;        ///< [slots][rows][head_dim]
  SoftmaxPair* partial_pairs;   ///< [slots][rows]
  std::uint32_t* tickets;       ///< [groups], zero between launches
  std::uint32_t* next_piece;    ///< two words, zero between launches: pieces handed out, CTAs finished
  std::uint32_t stages, link_slots, dynamic_percent, piece_tiles;
  std::uint32_t warps_of_row_block;  ///< consumer warps that share the tiles of one block of query rows
};

struct WorkCut {
  std::uint32_t total, fixed, pieces, piece_tiles;

  __device__ static WorkCut of(std::uint32_t total, const AttendArgs& a, std::uint32_t ctas) {
    WorkCut w;
    w.total = total;
    w.fixed = static_cast<std::uint32_t>(std::uint64_t{total} * (100 - a.dynamic_percent) / 100);
    if (a.dynamic_percent == 0) w.fixed = total;
    w.pieces = ctas < w.fixed ? ctas : w.fixed;  // so that no fixed piece is empty
    w.piece_tiles = a.piece_tiles;
    return w;
  }
  __device__ std::uint32_t piece_begin(std::uint32_t piece) const {
    if (piece < pieces) return static_cast<std::uint32_t>(std::uint64_t{piece} * fixed / pieces);
    const std::uint32_t begin = fixed + (piece - pieces) * piece_tiles;
    return begin < total ? begin : total;
  }
  __device__ std::uint32_t piece_end(std::uint32_t piece) const {
    return piece + 1 == pieces ? fixed : piece_begin(piece + 1);
  }
  __device__ std::uint32_t piece_of(std::uint32_t tile) const {
    if (tile >= fixed) return pieces + (tile - fixed) / piece_tiles;
    return static_cast<std::uint32_t>(((std::uint64_t{tile} + 1) * pieces - 1) / fixed);
  }
  __device__ std::uint32_t piece_count() const {
    return pieces + (total - fixed + piece_tiles - 1) / piece_tiles;
  }
};

/// Pages in a group's list.
__device__ __forceinline__ std::uint32_t list_pages(const AttendArgs& a, std::uint32_t group) {
  if (a.p.counts != nullptr) {
    const std::uint32_t n = __ldg(a.p.counts + group);
    return n < a.p.selection_pitch ? n : a.p.selection_pitch;
  }
  const std::uint32_t n = a.shape.pages_for(__ldg(a.p.lengths + group / a.shape.kv_heads));
  return n < a.shape.max_pages ? n : a.shape.max_pages;
}
__device__ __forceinline__ std::uint32_t tiles_of(const AttendArgs& a, std::uint32_t pages) {
  const std::uint32_t pages_a_tile = kTileTokens / a.shape.page_tokens;
  return (pages + pages_a_tile - 1) / pages_a_tile;
}

/// What the consumers must know of a segment: tiles [first, first + tiles) of a group's list.
struct Segment {
  std::uint32_t group;
  std::uint32_t first;
  std::uint32_t tiles;        ///< 0: no more work
  std::uint32_t slot;         ///< of its partial result
  std::uint32_t first_slot;   ///< of the group's first segment
  std::uint32_t segments;     ///< of the group
};

}  // namespace lehr::kernels::cuda
