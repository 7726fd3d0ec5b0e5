// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// A box of a page is the least and greatest stored K of each channel, [2][head_dim] in the shape's
/// 16-bit type, rounded outward. Boxes of a layer lie at a fixed address:
/// [sequences][kv_heads][max_pages][2][head_dim]. A channel with a NaN gets (-inf, +inf): the page
/// is then always chosen, never lost.
struct BoxesParams {
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences]
  void* boxes = nullptr;
  std::uint32_t first_page = 0;  ///< pages from here on are (re)computed
  std::uint32_t reserved = 0;
};
static_assert(sizeof(BoxesParams) == 32 && std::is_standard_layout_v<BoxesParams>);

/// The level above: boxes over blocks of pages, for the first of two levels of scoring. They are
/// scored and selected like pages, by a shape with max_pages = blocks(shape) and the same
/// page_tokens, with `coarse_lengths` for lengths; the list of blocks goes to ScoreParams::blocks.
struct CoarseParams {
  const void* boxes = nullptr;              ///< [sequences][kv_heads][max_pages][2][head_dim]
  const std::uint32_t* lengths = nullptr;   ///< [sequences]
  void* coarse = nullptr;                   ///< [sequences][kv_heads][blocks][2][head_dim]
  std::uint32_t* coarse_lengths = nullptr;  ///< [sequences]: page_tokens for each block in use
  std::uint32_t block_pages = 16;           ///< 16, 32, 64, 128 or 256
  std::uint32_t first_block = 0;            ///< blocks from here on are (re)computed

  constexpr std::uint32_t blocks(const StepShape& shape) const {
    return (shape.max_pages + block_pages - 1) / block_pages;
  }
};
static_assert(sizeof(CoarseParams) == 40 && std::is_standard_layout_v<CoarseParams>);

Status check_coarse(const StepShape& shape, const CoarseParams& params);
Status coarse_reference(const StepShape& shape, const CoarseParams& params);
Status coarse_cuda(const StepShape& shape, const CoarseParams& params, void* stream);

Status check_boxes(const StepShape& shape, const BoxesParams& params);
Status boxes_reference(const StepShape& shape, const BoxesParams& params);
Status boxes_cuda(const StepShape& shape, const BoxesParams& params, void* stream);

}  // namespace lehr::kernels
