// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/page_entry.hpp"
#include "kernels/shape.hpp"

namespace lehr::kernels {

/// Rewrites pages from one stored format to another (page_entry.hpp); 16-bit to 16-bit is a copy or
/// a change of type. Sources are read whole: tokens past a sequence's end must be finite or are
/// made 0.
struct QuantizeParams {
  const PageEntry* sources = nullptr;           ///< [count], format in the entry
  const std::uint64_t* destinations = nullptr;  ///< [count] addresses, multiples of 16
  std::uint32_t count = 0;
  PageFormat to = DType::kE4m3;
  std::uint8_t reserved[2] = {};
};
static_assert(sizeof(QuantizeParams) == 24 && std::is_standard_layout_v<QuantizeParams>);

Status check_quantize(const StepShape& shape, const QuantizeParams& params);
Status quantize_reference(const StepShape& shape, const QuantizeParams& params);
Status quantize_cuda(const StepShape& shape, const QuantizeParams& params, void* stream);

/// The same bits, as a mover runs it: pages change memory and format in one crossing. `ctas` CTAs
/// take pages in turn; each fetches its next page into shared memory while it converts one there,
/// and both ends see whole lines, whichever of them lies over a link. Sources and destinations
/// start at multiples of 16; the lists may lie in pinned host memory, and a source that is absent
/// or a destination of 0 moves nothing. Capturable. Refuses no CTAs, and pages that shared memory
/// does not hold in both forms.
Status convert_pages_cuda(const StepShape& shape, const QuantizeParams& params, std::uint32_t ctas,
                          void* stream);

/// Refuses a format that no page has.
Status check_format(PageFormat format);

/// K (what 0) or V (what 1) of one token and channel of a stored page, as the kernels see it.
float stored_value(const void* page, PageFormat format, std::uint32_t page_tokens,
                   std::uint32_t head_dim, int what, std::uint32_t token, std::uint32_t channel);

}  // namespace lehr::kernels
