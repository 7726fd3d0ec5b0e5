// SPDX-License-Identifier: Apache-2.0
#include "kernels/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "kernels/quantize.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

using reference::PageList;
using reference::value_at;

/// The softmax state of one query row: weights are d * 2^m, acc is their sum of V.
struct Row {
  double m = -std::numeric_limits<double>::infinity();
  double d = 0;
  std::vector<double> acc;

  void add(double logit, const std::vector<double>& v) {
    if (logit > m) {
      const double shrink = std::exp2(m - logit);  // 0 for the first token: m is -inf
      d *= shrink;
      for (double& a : acc) a *= shrink;
      m = logit;
    }
    const double weight = std::exp2(logit - m);
    d += weight;
    for (std::size_t i = 0; i < acc.size(); ++i) acc[i] += weight * v[i];
  }
};

struct Logits {
  double scale, cap;
  double of(double dot) const {
    double s = dot * scale;
    if (cap > 0) s = cap * std::tanh(s / cap);
    return s * std::numbers::log2e;
  }
};

bool sees(const StepShape& shape, const AttendParams& params, std::uint32_t length,
          std::uint32_t query, std::uint32_t position) {
  const std::uint32_t end = length - shape.q_len + query + 1;
  if (position >= end) return false;
  return params.window == 0 || position + params.window >= end;
}

/// One query row over one group's list; writes the pair of each page.
Row attend_row(const StepShape& shape, const AttendParams& params, std::size_t group, PageList list,
               std::uint32_t row_index, std::uint32_t length) {
  const std::size_t sequence = group / shape.kv_heads;
  const std::size_t head = group % shape.kv_heads;
  const std::uint32_t query = row_index / shape.ratio();
  const std::size_t q_head = head * shape.ratio() + row_index % shape.ratio();
  const std::size_t q_row = (sequence * shape.q_len + query) * shape.q_heads + q_head;
  const Logits logits{
      params.scale != 0 ? double{params.scale} : 1 / std::sqrt(double(shape.head_dim)),
      double{params.soft_cap}};
  Row total;
  total.acc.assign(shape.head_dim, 0.0);
  std::vector<double> v(shape.head_dim);
  for (std::uint32_t i = 0; i < list.count; ++i) {
    const std::uint32_t page = list.page(i);
    const PageEntry entry = params.table[group * shape.max_pages + page];
    Row pair;
    for (std::uint32_t t = 0; t < shape.page_tokens && entry != kAbsentPage; ++t) {
      if (!sees(shape, params, length, query, page * shape.page_tokens + t)) continue;
      const void* data = reference::page_address(entry);
      double dot = 0;
      for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
        dot += double{value_at(shape.dtype, params.q, q_row * shape.head_dim + c)} *
               double{stored_value(data, entry_formats(entry), shape.page_tokens, shape.head_dim, 0,
                                   t, c)};
        v[c] = stored_value(data, entry_formats(entry), shape.page_tokens, shape.head_dim, 1, t, c);
      }
      const double logit = logits.of(dot);
      total.add(logit, v);
      pair.add(logit, {});
    }
    if (params.pairs != nullptr) {
      const std::size_t at = (group * list_pitch(shape, params) + i) * shape.rows() + row_index;
      params.pairs[at] = {static_cast<float>(pair.m), static_cast<float>(pair.d)};
    }
  }
  return total;
}

void write_row(const StepShape& shape, const AttendParams& params, std::size_t group,
               std::uint32_t row_index, const Row& row) {
  const std::size_t sequence = group / shape.kv_heads;
  const std::size_t q_head = group % shape.kv_heads * shape.ratio() + row_index % shape.ratio();
  const std::size_t out_row =
      (sequence * shape.q_len + row_index / shape.ratio()) * shape.q_heads + q_head;
  auto* out = static_cast<unsigned char*>(params.out) + out_row * shape.head_dim * 2;
  for (std::uint32_t c = 0; c < shape.head_dim; ++c) {
    const double value = row.d == 0 ? 0.0 : row.acc[c] / row.d;  // nothing to see: zeros, not NaN
    const std::uint16_t h = store_16(shape.dtype, static_cast<float>(value));
    std::memcpy(out + 2 * std::size_t{c}, &h, 2);
  }
  if (params.totals != nullptr) {
    params.totals[group * shape.rows() + row_index] = {static_cast<float>(row.m),
                                                       static_cast<float>(row.d)};
  }
}

/// All query rows of a group.
void attend_rows(const StepShape& shape, const AttendParams& params, std::size_t group,
                 PageList list, std::uint32_t length) {
  for (std::uint32_t row = 0; row < shape.rows(); ++row) {
    // A query before the start of its sequence sees nothing.
    const bool empty = length + row / shape.ratio() + 1 <= shape.q_len;
    write_row(shape, params, group, row,
              attend_row(shape, params, group, empty ? PageList{nullptr, 0} : list, row, length));
    if (!empty || params.pairs == nullptr) continue;
    for (std::uint32_t i = 0; i < list.count; ++i) {
      params.pairs[(group * list_pitch(shape, params) + i) * shape.rows() + row] = {
          -std::numeric_limits<float>::infinity(), 0.0F};
    }
  }
}

/// Pages that came over a link go where they are to live; absent ones are counted.
void install_pages(const StepShape& shape, const AttendParams& params, std::size_t group,
                   PageList list) {
  for (std::uint32_t i = 0; i < list.count; ++i) {
    const std::size_t at = group * shape.max_pages + list.page(i);
    const PageEntry entry = params.table[at];
    if (entry == kAbsentPage && params.absent != nullptr) ++*params.absent;
    if (params.installs != nullptr && entry_over_link(entry) && params.installs[at] != 0) {
      std::memcpy(reference::memory_at(params.installs[at]), reference::page_address(entry),
                  stored_page_bytes(entry_formats(entry), shape.page_tokens, shape.head_dim));
    }
  }
}

}  // namespace

Status check_attend(const StepShape& shape, const AttendParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.q, 16, "q"));
  LEHR_TRY(check_pointer(params.out, 16, "out"));
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  if ((params.selection == nullptr) != (params.counts == nullptr)) {
    return invalid("selection and counts go together: one of them is null");
  }
  if (params.selection != nullptr) {
    LEHR_TRY(check_pointer(params.selection, 4, "selection"));
    LEHR_TRY(check_pointer(params.counts, 4, "counts"));
    if (params.selection_pitch == 0 || params.selection_pitch > shape.max_pages) {
      return invalid(fmt::format("selection_pitch {}; 1 to max_pages ({}) is expected",
                                 params.selection_pitch, shape.max_pages),
                     Reason::kOutOfRange);
    }
  }
  if (params.pairs != nullptr) LEHR_TRY(check_pointer(params.pairs, 8, "pairs"));
  if (params.totals != nullptr) LEHR_TRY(check_pointer(params.totals, 8, "totals"));
  if (params.installs != nullptr) LEHR_TRY(check_pointer(params.installs, 8, "installs"));
  if (params.absent != nullptr) LEHR_TRY(check_pointer(params.absent, 4, "absent"));
  if (!(params.scale >= 0) || !(params.soft_cap >= 0) || std::isinf(params.scale) ||
      std::isinf(params.soft_cap)) {
    return invalid("scale and soft_cap must be finite and not negative");
  }
  if (params.formats >= 16) return unsupported("formats names a page format that does not exist");
  return {};
}

Status check_selection(const StepShape& shape, std::span<const std::uint32_t> lengths,
                       std::span<const std::uint32_t> selection, std::uint32_t pitch,
                       std::span<const std::uint32_t> counts) {
  if (lengths.size() != shape.sequences || counts.size() != shape.groups() ||
      selection.size() != shape.groups() * pitch) {
    return invalid("lengths, counts or selection have another size than the shape says");
  }
  for (std::size_t group = 0; group < counts.size(); ++group) {
    const std::uint32_t pages = shape.pages_for(lengths[group / shape.kv_heads]);
    if (counts[group] > pitch) {
      return invalid(
          fmt::format("group {} selects {} pages; its row holds {}", group, counts[group], pitch),
          Reason::kOutOfRange);
    }
    for (std::uint32_t i = 0; i < counts[group]; ++i) {
      const std::uint32_t page = selection[group * pitch + i];
      if (page >= pages) {
        return invalid(
            fmt::format("group {} selects page {}; the sequence has {}", group, page, pages),
            Reason::kOutOfRange);
      }
      if (i > 0 && page <= selection[group * pitch + i - 1]) {
        return invalid(fmt::format("group {}: the selection is not ascending at {}", group, i));
      }
    }
  }
  return {};
}

Status attend_reference(const StepShape& shape, const AttendParams& params) {
  LEHR_TRY(check_attend(shape, params));
  if (shape.sequences == 0) return {};
  const std::span<const std::uint32_t> lengths(params.lengths, shape.sequences);
  for (const std::uint32_t length : lengths) {
    if (length > std::uint64_t{shape.max_pages} * shape.page_tokens) {
      return invalid(fmt::format("a sequence of {} tokens; max_pages holds {}", length,
                                 std::uint64_t{shape.max_pages} * shape.page_tokens),
                     Reason::kOutOfRange);
    }
  }
  if (params.selection != nullptr) {
    LEHR_TRY(check_selection(shape, lengths,
                             {params.selection, shape.groups() * params.selection_pitch},
                             params.selection_pitch, {params.counts, shape.groups()}));
  }
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t length = lengths[group / shape.kv_heads];
    PageList list{nullptr, shape.pages_for(length)};
    if (params.selection != nullptr) {
      list = {params.selection + group * params.selection_pitch, params.counts[group]};
    }
    attend_rows(shape, params, group, list, length);
    install_pages(shape, params, group, list);
  }
  return {};
}

}  // namespace lehr::kernels
