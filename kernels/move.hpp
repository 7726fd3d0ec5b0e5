// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/result.hpp"

namespace lehr::kernels {

/// Where one page comes from and where it goes: addresses as the device sees them (own HBM, a
/// peer's, pinned host memory). `from` 0: nothing is moved, and `to` is not looked at. The list is
/// read when the move runs, so what has not run may still be taken out.
struct PagePair {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
};
static_assert(sizeof(PagePair) == 16);

/// A page is `count` pieces of equal size at these offsets from its two addresses. One piece is a
/// page that keeps its layout; K and V of several layers that lie apart on the device and together
/// on the host are several. Addresses, offsets and bytes are multiples of 16.
struct PageLayout {
  static constexpr std::uint32_t kMaxPieces = 128;
  std::uint32_t count = 1;
  std::uint32_t piece_bytes = 0;
  std::uint64_t from[kMaxPieces] = {};
  std::uint64_t to[kMaxPieces] = {};

  std::uint64_t bytes() const { return std::uint64_t{count} * piece_bytes; }
  /// The same way back.
  PageLayout reversed() const;
};

/// How many SMs a move may use and how much it keeps in flight. A CTA is one warp with `stages`
/// buffers of `stage_bytes` in shared memory.
struct MoveRing {
  std::uint32_t ctas = 4;
  std::uint32_t stages = 4;           ///< 2 to 32; more where pieces are smaller than a stage
  std::uint32_t stage_bytes = 32768;  ///< a multiple of 16; pieces are cut into chunks of this
  std::uint32_t open_stores = 2;  ///< stages that may wait for their store: 1, 2, 4 or 8, < stages
  bool register_copies = false;   ///< the form for sm_80, on any device
  bool keep_in_l2 = false;        ///< else what is moved leaves L2 first
  bool one_by_one = false;        ///< small pieces too where they follow each other on one side

  std::uint32_t shared_bytes() const { return stages * stage_bytes; }
};

/// Moves pages: scattered sources to scattered destinations, by few warps that run bulk copies
/// through shared memory. The pairs and the memory they name belong to the move until the stream
/// has passed it; `pairs` may lie in pinned host memory. Pages of one call must not overlap.
struct MoveParams {
  const PagePair* pairs = nullptr;  ///< [pages], readable by the device
  std::uint32_t pages = 0;
};

/// Refuses what the kernels cannot do: sizes and offsets that are no multiples of 16, empty or too
/// many pieces, rings out of range.
Status check_move(const MoveParams& params, const PageLayout& layout, const MoveRing& ring);
Status move_pages_reference(const MoveParams& params, const PageLayout& layout);
/// On the current device and `stream` (a cudaStream_t); capturable.
Status move_pages_cuda(const MoveParams& params, const PageLayout& layout, const MoveRing& ring,
                       void* stream);

/// Reads memory and keeps nothing: what a measurement of bandwidth runs. `bytes` is a multiple of
/// 16; `sink` is four bytes of the device.
Status read_through_cuda(const void* memory, std::uint64_t bytes, std::uint32_t ctas,
                         std::uint32_t* sink, void* stream);

}  // namespace lehr::kernels
