// SPDX-License-Identifier: Apache-2.0
#include "kernels/boxes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quantize.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {

Status check_boxes(const StepShape& shape, const BoxesParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  return check_pointer(params.boxes, 16, "boxes");
}

Status boxes_reference(const StepShape& shape, const BoxesParams& params) {
  LEHR_TRY(check_boxes(shape, params));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t length = params.lengths[group / shape.kv_heads];
    const std::uint32_t pages = std::min(shape.pages_for(length), shape.max_pages);
    for (std::uint32_t page = params.first_page; page < pages; ++page) {
      const PageEntry entry = params.table[group * shape.max_pages + page];
      if (entry == kAbsentPage) continue;  // its box stays what it was when the page was here
      const std::uint32_t tokens = std::min(shape.page_tokens, length - page * shape.page_tokens);
      auto* box = static_cast<unsigned char*>(params.boxes) +
                  (group * shape.max_pages + page) * 4 * shape.head_dim;
      for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
        float low = std::numeric_limits<float>::infinity();
        float high = -low;
        bool nan = false;
        for (std::uint32_t t = 0; t < tokens; ++t) {
          const float k = stored_value(reference::page_address(entry), entry_formats(entry),
                                       shape.page_tokens, shape.head_dim, 0, t, c);
          nan = nan || std::isnan(k);
          low = std::min(low, k);
          high = std::max(high, k);
        }
        if (nan) {
          high = std::numeric_limits<float>::infinity();
          low = -high;
        }
        const std::uint16_t ends[2] = {store_16_down(shape.dtype, low),
                                       store_16_up(shape.dtype, high)};
        std::memcpy(box + 2 * std::size_t{c}, &ends[0], 2);
        std::memcpy(box + 2 * (std::size_t{shape.head_dim} + c), &ends[1], 2);
      }
    }
  }
  return {};
}

Status check_coarse(const StepShape& shape, const CoarseParams& params) {
  LEHR_TRY(check_shape(shape));
  const std::uint32_t n = params.block_pages;
  if (n < 16 || n > 256 || (n & (n - 1)) != 0) {
    return unsupported("block_pages; offered are 16, 32, 64, 128 and 256");
  }
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.boxes, 16, "boxes"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.coarse, 16, "coarse"));
  return check_pointer(params.coarse_lengths, 4, "coarse_lengths");
}

Status coarse_reference(const StepShape& shape, const CoarseParams& params) {
  LEHR_TRY(check_coarse(shape, params));
  const std::uint32_t d = shape.head_dim;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t length = params.lengths[group / shape.kv_heads];
    const std::uint32_t pages = std::min(shape.pages_for(length), shape.max_pages);
    const std::uint32_t blocks = (pages + params.block_pages - 1) / params.block_pages;
    params.coarse_lengths[group / shape.kv_heads] = blocks * shape.page_tokens;
    for (std::uint32_t block = params.first_block; block < blocks; ++block) {
      const std::uint32_t first = block * params.block_pages;
      const std::uint32_t last = std::min(first + params.block_pages, pages);
      auto* to = static_cast<unsigned char*>(params.coarse) +
                 (group * params.blocks(shape) + block) * 4 * d;
      for (std::uint32_t c = 0; c < d; ++c) {
        float low = std::numeric_limits<float>::infinity();
        float high = -low;
        for (std::uint32_t page = first; page < last; ++page) {
          const std::size_t box = (group * shape.max_pages + page) * 2 * d;
          low = std::min(low, reference::value_at(shape.dtype, params.boxes, box + c));
          high = std::max(high, reference::value_at(shape.dtype, params.boxes, box + d + c));
        }
        const std::uint16_t ends[2] = {store_16(shape.dtype, low), store_16(shape.dtype, high)};
        std::memcpy(to + 2 * std::size_t{c}, &ends[0], 2);
        std::memcpy(to + 2 * std::size_t{d + c}, &ends[1], 2);
      }
    }
  }
  return {};
}

}  // namespace lehr::kernels
