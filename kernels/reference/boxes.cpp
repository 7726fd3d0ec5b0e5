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

}  // namespace lehr::kernels
