// SPDX-License-Identifier: Apache-2.0
#include "kernels/append.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quantize.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

using reference::half_at;

void put_half(void* base, std::size_t index, std::uint16_t h) {
  std::memcpy(static_cast<unsigned char*>(base) + 2 * index, &h, 2);
}

/// Widens one channel of a box by k, or starts it.
void grow(DType type, void* box, std::uint32_t head_dim, std::uint32_t channel, std::uint16_t k,
          bool first) {
  const float value = load_16(type, k);
  const float infinity = std::numeric_limits<float>::infinity();
  const float low = first ? infinity : load_16(type, half_at(box, channel));
  const float high = first ? -infinity : load_16(type, half_at(box, head_dim + channel));
  if (std::isnan(value)) {
    put_half(box, channel, store_16(type, -infinity));
    put_half(box, head_dim + channel, store_16(type, infinity));
    return;
  }
  if (value < low || first) put_half(box, channel, k);
  if (value > high || first) put_half(box, head_dim + channel, k);
}

/// The box that bounds what it bounded and the stored page, too.
void widen(const StepShape& shape, void* box, const void* page, PageFormat format) {
  for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
    float low = load_16(shape.dtype, half_at(box, c));
    float high = load_16(shape.dtype, half_at(box, shape.head_dim + c));
    for (std::uint32_t t = 0; t < shape.page_tokens; ++t) {
      const float k = stored_value(page, format, shape.page_tokens, shape.head_dim, 0, t, c);
      if (std::isnan(k)) low = -(high = std::numeric_limits<float>::infinity());
      low = std::min(low, k);
      high = std::max(high, k);
    }
    put_half(box, c, store_16_down(shape.dtype, low));
    put_half(box, shape.head_dim + c, store_16_up(shape.dtype, high));
  }
}

struct Appending {
  const StepShape& shape;
  const AppendParams& params;
  std::size_t group;

  unsigned char* box(std::uint32_t page) const {
    if (params.boxes == nullptr) return nullptr;
    return static_cast<unsigned char*>(params.boxes) +
           (group * shape.max_pages + page) * 4 * shape.head_dim;
  }

  /// Token `j` of the call, at `position`. False: its page is not there, or not of 16 bits.
  bool write(std::uint32_t j, std::uint32_t position) const {
    const std::uint32_t page = position / shape.page_tokens;
    const std::uint32_t token = position % shape.page_tokens;
    const PageEntry entry = params.table[group * shape.max_pages + page];
    if (entry == kAbsentPage || entry_formats(entry) != PageFormat(shape.dtype)) return false;
    auto* data = reference::memory_at(entry_address(entry));
    const std::size_t sequence = group / shape.kv_heads;
    const std::size_t from =
        ((sequence * shape.q_len + j) * shape.kv_heads + group % shape.kv_heads) * shape.head_dim;
    for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
      const std::uint16_t k = half_at(params.k, from + c);
      put_half(data, std::size_t{token} * shape.head_dim + c, k);
      put_half(data, std::size_t{shape.page_tokens + token} * shape.head_dim + c,
               half_at(params.v, from + c));
      if (params.boxes != nullptr) grow(shape.dtype, box(page), shape.head_dim, c, k, token == 0);
    }
    return true;
  }

  /// The page's last token has been written.
  Status complete(std::uint32_t page) const {
    if (params.completed == nullptr || params.completed[group] == 0) return {};
    QuantizeParams q;
    q.sources = params.table + group * shape.max_pages + page;
    q.destinations = params.completed + group;
    q.count = 1;
    q.to = params.to;
    LEHR_TRY(quantize_reference(shape, q));
    if (params.boxes != nullptr)
      widen(shape, box(page), reference::memory_at(params.completed[group]), params.to);
    return {};
  }
};

}  // namespace

Status check_append(const StepShape& shape, const AppendParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.k, 16, "k"));
  LEHR_TRY(check_pointer(params.v, 16, "v"));
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  if (params.boxes != nullptr) LEHR_TRY(check_pointer(params.boxes, 16, "boxes"));
  if (params.absent != nullptr) LEHR_TRY(check_pointer(params.absent, 4, "absent"));
  if (params.completed == nullptr) return {};
  LEHR_TRY(check_pointer(params.completed, 8, "completed"));
  return check_format(params.to);
}

Status append_reference(const StepShape& shape, const AppendParams& params) {
  LEHR_TRY(check_append(shape, params));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const Appending appending{shape, params, group};
    const std::uint32_t length = params.lengths[group / shape.kv_heads];
    if (length < shape.q_len || length > std::uint64_t{shape.max_pages} * shape.page_tokens)
      continue;
    for (std::uint32_t j = 0; j < shape.q_len; ++j) {
      const std::uint32_t position = length - shape.q_len + j;
      if (!appending.write(j, position)) {
        if (params.absent != nullptr) ++*params.absent;
      } else if ((position + 1) % shape.page_tokens == 0) {
        LEHR_TRY(appending.complete(position / shape.page_tokens));
      }
    }
  }
  return {};
}

}  // namespace lehr::kernels
