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

Status check_boxes(const StepShape& shape, const BoxesParams& params);
Status boxes_reference(const StepShape& shape, const BoxesParams& params);
Status boxes_cuda(const StepShape& shape, const BoxesParams& params, void* stream);

}  // namespace lehr::kernels
