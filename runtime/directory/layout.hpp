// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::directory {

/// How a block of an engine's pool lies in memory. All strides and offsets in bytes. `opaque_bytes`
/// > 0: nothing is known but the size of a block, which is contiguous.
struct Layout {
  Bytes opaque_bytes = 0;
  std::uint32_t dtype = 0;  ///< a number for the element type; compared, never interpreted
  std::uint32_t element_bytes = 0;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t tokens = 0;    ///< of a block
  std::uint32_t head_dim = 0;  ///< elements of K, and of V
  bool fused = false;  ///< K and V side by side in the last axis: K‖V, 2 x head_dim elements
  std::uint64_t block_stride = 0;
  std::uint64_t layer_stride = 0;
  std::uint64_t head_stride = 0;
  std::uint64_t token_stride = 0;
  std::uint64_t k_offset = 0;
  std::uint64_t v_offset = 0;
  std::uint32_t padding = 0;  ///< bytes after each row of elements that carry nothing
};

using LayoutDigest = std::array<std::uint8_t, 16>;

/// One contiguous piece of a block, relative to its first byte.
struct Run {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Sizes positive and free of overflow, rows that do not overlap, at most 2^20 runs.
Status check_layout(const Layout& layout);

/// Bytes of a block's contents, padding left out.
Bytes contents_bytes(const Layout& layout);

/// Bytes from a block's first byte to past its last.
std::uint64_t span_bytes(const Layout& layout);

/// The pieces of a block in the order in which they are stored: layer, K then V, then heads and
/// tokens in the order in which they lie. Neighbouring rows are merged.
std::vector<Run> block_runs(const Layout& layout);

/// A block cut for kernels that move strided pieces: every part is the same pieces of equal size at
/// another offset. Parts are in storage order, the same number for each layer; stored, a part's
/// pieces follow each other.
struct BlockParts {
  std::uint32_t layers = 1;  ///< 1 for an opaque layout
  std::uint32_t piece_bytes = 0;
  std::vector<std::uint64_t> pieces;    ///< offsets within a part, the first is 0
  std::vector<std::uint64_t> in_block;  ///< offset of each part from the block's first byte
  std::uint64_t stored_bytes() const { return pieces.size() * piece_bytes; }  ///< of a part
  std::size_t per_layer() const { return in_block.size() / layers; }
};
/// Parts of at most `most_pieces`. kInvalid with the field to blame where something is no multiple
/// of `grain` bytes.
Result<BlockParts> block_parts(const Layout& layout, std::uint32_t most_pieces,
                               std::uint32_t grain);

/// XXH3-128 of everything that decides which bytes mean what inside a block: not of block_stride,
/// which only says where the next block is.
LayoutDigest layout_digest(const Layout& layout);

}  // namespace lehr::directory
