// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/attend.hpp"

/// How a launch's work is cut. The tiles (64 tokens of one group's list) of all groups, in order,
/// are one line, cut evenly into one piece a CTA; where a piece crosses groups it is cut further
/// into segments. All cuts follow from lengths and the grid alone, never from where pages lie: that
/// is what makes the output bit-identical.
namespace lehr::kernels::cuda {

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint32_t kTileTokens = 64;
inline constexpr std::uint32_t kTileBlocks = kTileTokens / kBlockTokens;

/// A divisor that is not known when the kernel is compiled, for numerators below 2^24 and divisors
/// up to 256.
struct Divisor {
  std::uint32_t value, inverse;

  static Divisor of(std::uint32_t d) {
    return {d, static_cast<std::uint32_t>((std::uint64_t{1} << 32) / d + (d > 1 ? 1 : 0))};
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const {
    return value == 1 ? n : __umulhi(n, inverse);
  }
};

struct AttendArgs {
  StepShape shape;
  AttendParams p;
  float* partial_values;       ///< [slots][rows][head_dim]
  SoftmaxPair* partial_pairs;  ///< [slots][rows]
  std::uint32_t* tickets;      ///< [groups], zero between launches
  std::uint32_t rows, page_shift, groups;
  std::uint32_t host_slots;  ///< for blocks that cross a link
  Divisor stages, ratio, kv_heads;
  std::uint32_t
      warps_of_row_block;  ///< consumer warps that share the tiles of one block of query rows

  __device__ std::uint32_t pages_a_tile() const { return kTileTokens >> page_shift; }
  __device__ std::uint32_t sequence_of(std::uint32_t group) const { return group / kv_heads.value; }
};

/// The first `longer` pieces have one tile more than the others.
struct WorkCut {
  std::uint32_t pieces, each, longer;

  __device__ static WorkCut of(std::uint32_t total, std::uint32_t ctas) {
    const std::uint32_t pieces = ctas < total ? ctas : total;  // no piece is empty
    return {pieces, pieces == 0 ? 0 : total / pieces, pieces == 0 ? 0 : total % pieces};
  }
  __device__ std::uint32_t begin(std::uint32_t piece) const {
    return piece * each + (piece < longer ? piece : longer);
  }
  __device__ std::uint32_t piece_of(std::uint32_t tile) const {
    const std::uint32_t in_longer = longer * (each + 1);
    return tile < in_longer ? tile / (each + 1) : longer + (tile - in_longer) / each;
  }
};

/// Pages in a group's list.
__device__ __forceinline__ std::uint32_t list_pages(const AttendArgs& a, std::uint32_t group) {
  if (a.p.counts != nullptr) {
    const std::uint32_t n = __ldcg(a.p.counts + group);
    return n < a.p.selection_pitch ? n : a.p.selection_pitch;
  }
  const std::uint32_t length = __ldg(a.p.lengths + a.sequence_of(group));
  const std::uint32_t n =
      (length >> a.page_shift) + ((length & (a.shape.page_tokens - 1)) != 0 ? 1 : 0);
  return n < a.shape.max_pages ? n : a.shape.max_pages;
}
__device__ __forceinline__ std::uint32_t tiles_of(const AttendArgs& a, std::uint32_t pages) {
  return (pages + a.pages_a_tile() - 1) >> (6 - a.page_shift);
}

/// What the consumers must know of a segment: tiles [first, first + tiles) of a group's list.
struct Segment {
  std::uint32_t group;
  std::uint32_t first;
  std::uint32_t tiles;       ///< 0: no more work
  std::uint32_t pages;       ///< in the group's list
  std::uint32_t slot;        ///< of its partial result
  std::uint32_t first_slot;  ///< of the group's first segment
  std::uint32_t segments;    ///< of the group
  std::uint32_t last;        ///< of this CTA's: 1
};

}  // namespace lehr::kernels::cuda
