// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/page_conversion.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/quantize.hpp"

namespace lehr::contents {

namespace {

constexpr float kLargestF16 = 65504;

kernels::StepShape step_shape(const PageShape& page) {
  const DType dtype = page.element == Element::kBf16 ? DType::kBf16 : DType::kF16;
  return {1, 1, 1, page.dim, page.tokens, 1, 1, dtype, {}};
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kernels::kPageAlignment - 1) / kernels::kPageAlignment * kernels::kPageAlignment;
}

}  // namespace

PageConversion::PageConversion(const PageShape& shape, DType to)
    : shape_(shape),
      to_(to),
      count_(2 * std::size_t{shape.tokens} * shape.dim),
      values_(count_),
      memory_(aligned(2 * count_) + kernels::slot_bytes(to, shape.tokens, shape.dim) +
              kernels::kPageAlignment) {}

Status PageConversion::check() const {
  Status sound = kernels::check_shape(step_shape(shape_));
  if (!sound) {
    Error error = sound.error();
    error.what = "pages of lower precision: " + error.what;
    return error;
  }
  return {};
}

Status PageConversion::lower(std::byte* contents) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
  std::byte* const from = memory_.data() + (aligned(start) - start);
  std::byte* const stored = from + aligned(2 * count_);
  const kernels::StepShape shape = step_shape(shape_);
  if (shape_.element == Element::kF32) {
    to_floats(shape_.element, contents, values_.data(), count_);
    for (float& x :
         values_) {  // what is too large for fp16 is no infinity, which counts as nothing
      if (std::isfinite(x)) x = std::clamp(x, -kLargestF16, kLargestF16);
    }
    from_floats(Element::kF16, values_.data(), from, count_);
  } else {
    std::memcpy(from, contents, 2 * count_);
  }
  const kernels::PageEntry source =
      kernels::make_entry(reinterpret_cast<std::uintptr_t>(from), false, shape.dtype);
  const auto destination = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stored));
  kernels::QuantizeParams params;
  params.sources = &source;
  params.destinations = &destination;
  params.count = 1;
  params.to = to_;
  LEHR_TRY(kernels::quantize_reference(shape, params));
  const std::size_t bytes = kernels::stored_page_bytes(to_, shape_.tokens, shape_.dim);
  std::memcpy(contents, stored, bytes);
  std::memset(contents + bytes, 0, shape_.bytes() - bytes);
  return {};
}

void PageConversion::widen(const std::byte* stored, float* out) const {
  for (int what = 0; what < 2; ++what) {
    for (std::uint32_t t = 0; t < shape_.tokens; ++t) {
      for (std::uint32_t c = 0; c < shape_.dim; ++c)
        *out++ = kernels::stored_value(stored, to_, shape_.tokens, shape_.dim, what, t, c);
    }
  }
}

void PageConversion::widen(const std::byte* stored, std::byte* out) {
  widen(stored, values_.data());
  from_floats(shape_.element, values_.data(), out, count_);
}

}  // namespace lehr::contents
