// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

using reference::half_at;

/// Where things lie in a stored page (page_entry.hpp), in bytes.
struct Layout {
  PageFormat format;
  std::uint32_t tokens, dim;

  DType of(int what) const { return what == 0 ? format.k : format.v; }
  std::size_t values_at(int what) const {
    const std::size_t half = std::size_t{tokens} * dim;
    return what == 0 ? 0 : half * element_bytes(format.k);
  }
  std::size_t value(int what, std::uint32_t token, std::uint32_t channel) const {
    return values_at(what) + (std::size_t{token} * dim + channel) * element_bytes(of(what));
  }
  std::size_t scales_at(int what) const {
    const std::size_t k_scales = values_at(1) + std::size_t{tokens} * dim * element_bytes(format.v);
    if (what == 0) return k_scales;
    if (format == PageFormat(DType::kE4m3)) return k_scales + 4;
    return k_scales + k_scale_bytes(format, tokens, dim);
  }
  /// int8 only.
  std::size_t scale(int what, std::uint32_t token, std::uint32_t channel) const {
    if (what == 0) return scales_at(0) + (std::size_t{token / 32} * dim + channel) * 2;
    return scales_at(1) + (std::size_t{token} * (dim / 32) + channel / 32) * 2;
  }
};

/// K (what 0) and V (1) of a page as floats, [2][tokens][dim].
struct PageValues {
  std::uint32_t tokens, dim;
  std::vector<float> x;
  PageValues(std::uint32_t page_tokens, std::uint32_t head_dim)
      : tokens(page_tokens), dim(head_dim), x(std::size_t{2} * page_tokens * head_dim) {}
  float& at(int what, std::uint32_t token, std::uint32_t channel) {
    return x[(static_cast<std::size_t>(what) * tokens + token) * dim + channel];
  }
  template <class Each>
  void each(int what, Each&& visit) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t c = 0; c < dim; ++c) visit(t, c, at(what, t, c));
    }
  }
};

float float_at(const unsigned char* base, std::size_t offset) {
  float f = 0;
  std::memcpy(&f, base + offset, 4);
  return f;
}
void put_half(unsigned char* base, std::size_t offset, std::uint16_t h) {
  std::memcpy(base + offset, &h, 2);
}

/// A scale that makes `peak` fit `limit`; 1 where there is nothing to scale, so that it is never 0.
float scale_for(float peak, float limit) {
  return peak > 0 && std::isfinite(peak) ? peak / limit : 1.0F;
}

float finite(float x) { return std::isfinite(x) ? x : 0.0F; }

void to_e4m3_half(PageValues& values, const Layout& to, unsigned char* out, int what) {
  float peak = 0;
  values.each(what, [&](auto, auto, float x) { peak = std::max(peak, std::fabs(finite(x))); });
  const float scale = scale_for(peak, 448.0F);
  const float inverse = 1.0F / scale;
  values.each(what, [&](std::uint32_t t, std::uint32_t c, float x) {
    out[to.value(what, t, c)] = lehr::to_e4m3(finite(x) * inverse);
  });
  std::memcpy(out + to.scales_at(what), &scale, 4);
}

/// One group of int8 values under one fp16 scale.
template <class Each>
void int8_group(PageValues& values, const Layout& to, unsigned char* out, int what,
                std::size_t scale_offset, Each&& each) {
  float peak = 0;
  each([&](std::uint32_t t, std::uint32_t c) {
    peak = std::max(peak, std::fabs(finite(values.at(what, t, c))));
  });
  // Rounded up, so that no value passes 127; a subnormal scale would lose its digits, an infinite
  // one all.
  const float scale = std::clamp(scale_for(peak, 127.0F), 0x1p-14F, 61440.0F);
  std::uint16_t stored = store_16_up(DType::kF16, scale);
  // K's scale keeps four digits: its product with seven is then exact in fp16, and logits, which
  // multiply errors of K, get none from it.
  if (what == 0) stored = static_cast<std::uint16_t>((stored + 0x7FU) & ~0x7FU);
  const float inverse = 1.0F / from_f16(stored);
  put_half(out, scale_offset, stored);
  each([&](std::uint32_t t, std::uint32_t c) {
    const float q = std::nearbyint(finite(values.at(what, t, c)) * inverse);
    out[to.value(what, t, c)] =
        static_cast<unsigned char>(static_cast<std::int8_t>(std::clamp(q, -127.0F, 127.0F)));
  });
}

void to_int8_k(PageValues& values, const Layout& to, unsigned char* out) {
  for (std::uint32_t first = 0; first < to.tokens; first += 32) {
    const std::uint32_t last = std::min(first + 32, to.tokens);
    for (std::uint32_t c = 0; c < to.dim; ++c) {
      int8_group(values, to, out, 0, to.scale(0, first, c), [&](auto&& visit) {
        for (std::uint32_t t = first; t < last; ++t) visit(t, c);
      });
    }
  }
}

void to_int8_v(PageValues& values, const Layout& to, unsigned char* out) {
  for (std::uint32_t t = 0; t < to.tokens; ++t) {
    for (std::uint32_t first = 0; first < to.dim; first += 32) {
      int8_group(values, to, out, 1, to.scale(1, t, first), [&](auto&& visit) {
        for (std::uint32_t c = first; c < first + 32; ++c) visit(t, c);
      });
    }
  }
}

void write_half_of_page(PageValues& values, const Layout& to, unsigned char* out, int what) {
  switch (to.of(what)) {
    case DType::kF16:
    case DType::kBf16:
      values.each(what, [&](std::uint32_t t, std::uint32_t c, float x) {
        put_half(out, to.value(what, t, c), store_16(to.of(what), x));
      });
      return;
    case DType::kE4m3:
      to_e4m3_half(values, to, out, what);
      return;
    case DType::kInt8:
      if (what == 0) to_int8_k(values, to, out);
      if (what == 1) to_int8_v(values, to, out);
      return;
  }
}

}  // namespace

float stored_value(const void* page, PageFormat format, std::uint32_t page_tokens,
                   std::uint32_t head_dim, int what, std::uint32_t token, std::uint32_t channel) {
  const Layout at{format, page_tokens, head_dim};
  const auto* bytes = static_cast<const unsigned char*>(page);
  const std::size_t offset = at.value(what, token, channel);
  switch (at.of(what)) {
    case DType::kF16:
    case DType::kBf16:
      return load_16(at.of(what), half_at(bytes + offset, 0));
    case DType::kE4m3:
      return from_e4m3(bytes[offset]) * float_at(bytes, at.scales_at(what));
    case DType::kInt8:
      return static_cast<float>(static_cast<std::int8_t>(bytes[offset])) *
             from_f16(half_at(bytes + at.scale(what, token, channel), 0));
  }
  return 0;
}

Status check_format(PageFormat format) {
  if (static_cast<unsigned>(format.k) > 3 || static_cast<unsigned>(format.v) > 3)
    return unsupported("an unknown page format");
  return {};
}

Status check_quantize(const StepShape& shape, const QuantizeParams& params) {
  LEHR_TRY(check_shape(shape));
  LEHR_TRY(check_format(params.to));
  if (params.count == 0) return {};
  LEHR_TRY(check_pointer(params.sources, 8, "sources"));
  return check_pointer(params.destinations, 8, "destinations");
}

Status quantize_reference(const StepShape& shape, const QuantizeParams& params) {
  LEHR_TRY(check_quantize(shape, params));
  const std::uint32_t tokens = shape.page_tokens;
  const std::uint32_t dim = shape.head_dim;
  const Layout to{params.to, tokens, dim};
  PageValues values(tokens, dim);
  for (std::uint32_t i = 0; i < params.count; ++i) {
    if (params.sources[i] == kAbsentPage || params.destinations[i] == 0) continue;
    const void* from = reference::page_address(params.sources[i]);
    auto* out = reference::memory_at(params.destinations[i]);
    const std::size_t scales = to.scales_at(0);
    std::memset(out + scales, 0, stored_page_bytes(params.to, tokens, dim) - scales);
    for (int what = 0; what < 2; ++what) {
      values.each(what, [&](std::uint32_t t, std::uint32_t c, float& x) {
        x = stored_value(from, entry_formats(params.sources[i]), tokens, dim, what, t, c);
      });
    }
    for (int what = 0; what < 2; ++what) write_half_of_page(values, to, out, what);
  }
  return {};
}

}  // namespace lehr::kernels
