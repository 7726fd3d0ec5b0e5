// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/mass.hpp"
#include "kernels/reference/values.hpp"

namespace lehr::kernels {
namespace {

using reference::memory_at;

std::size_t row_bytes(const StepShape& shape) { return std::size_t{2} * shape.head_dim; }

/// Byte offset of a row.
std::ptrdiff_t row_at(const RowStrides& s, std::size_t sequence, std::size_t head,
                      std::size_t token) {
  return 2 * (static_cast<std::ptrdiff_t>(sequence) * static_cast<std::ptrdiff_t>(s.sequence) +
              static_cast<std::ptrdiff_t>(head) * static_cast<std::ptrdiff_t>(s.head) +
              static_cast<std::ptrdiff_t>(token) * static_cast<std::ptrdiff_t>(s.token));
}
const unsigned char* row(const void* base, const RowStrides& s, std::size_t sequence,
                         std::size_t head, std::size_t token) {
  return static_cast<const unsigned char*>(base) + row_at(s, sequence, head, token);
}
unsigned char* row(void* base, const RowStrides& s, std::size_t sequence, std::size_t head,
                   std::size_t token) {
  return static_cast<unsigned char*>(base) + row_at(s, sequence, head, token);
}

/// One page of StoreParams, at one of its places.
void store_page(const StepShape& shape, const StoreParams& p, std::size_t group, std::uint32_t page,
                unsigned char* to) {
  const std::size_t sequence = group / shape.kv_heads, head = group % shape.kv_heads;
  const std::uint32_t first = page * shape.page_tokens;
  const std::uint32_t before = p.before[sequence], end = before + p.tokens[sequence];
  const std::size_t bytes = row_bytes(shape), half = shape.page_tokens * bytes;
  const unsigned char* old = nullptr;
  if (p.carried != nullptr && p.carried[sequence] != 0)
    old = memory_at(p.carried[sequence] + p.carried_offset + head * p.page_pitch);
  for (std::uint32_t t = 0; t < shape.page_tokens && first + t < end; ++t) {
    const std::uint32_t position = first + t;
    if (position < before && old == nullptr) continue;
    const unsigned char* k = old + t * bytes;
    const unsigned char* v = old + half + t * bytes;
    if (position >= before) {
      k = row(p.k, p.k_strides, sequence, head, position - before);
      v = row(p.v, p.v_strides, sequence, head, position - before);
    }
    std::memcpy(to + t * bytes, k, bytes);
    std::memcpy(to + half + t * bytes, v, bytes);
  }
}

}  // namespace

Status check_store(const StepShape& shape, const StoreParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0 || params.pages == 0) return {};
  LEHR_TRY(check_pointer(params.k, 2, "k"));
  LEHR_TRY(check_pointer(params.v, 2, "v"));
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.before, 4, "before"));
  return check_pointer(params.tokens, 4, "tokens");
}

Status store_rows_reference(const StepShape& shape, const StoreParams& params) {
  LEHR_TRY(check_store(shape, params));
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::size_t sequence = group / shape.kv_heads;
    if (params.tokens[sequence] == 0) continue;
    const std::uint32_t first = params.before[sequence] / shape.page_tokens;
    const std::uint32_t last =
        (params.before[sequence] + params.tokens[sequence] - 1) / shape.page_tokens;
    for (std::uint32_t page = first; page <= last && page < shape.max_pages; ++page) {
      if (page - first >= params.pages) break;
      const PageEntry entry = params.table[group * shape.max_pages + page];
      if (entry != kAbsentPage)
        store_page(shape, params, group, page, memory_at(entry_address(entry)));
      if (params.copies == nullptr) continue;
      const std::uint64_t copy = params.copies[group * params.pages + page - first];
      if (copy != 0) store_page(shape, params, group, page, memory_at(copy));
    }
  }
  return {};
}

Status check_load(const StepShape& shape, const LoadParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0 || params.tokens == 0) return {};
  LEHR_TRY(check_pointer(params.k, 2, "k"));
  LEHR_TRY(check_pointer(params.v, 2, "v"));
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  return check_pointer(params.lengths, 4, "lengths");
}

Status load_rows_reference(const StepShape& shape, const LoadParams& params) {
  LEHR_TRY(check_load(shape, params));
  const std::size_t bytes = row_bytes(shape), half = shape.page_tokens * bytes;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::size_t sequence = group / shape.kv_heads, head = group % shape.kv_heads;
    for (std::uint32_t t = 0; t < params.tokens; ++t) {
      unsigned char* const k = row(params.k, params.k_strides, sequence, head, t);
      unsigned char* const v = row(params.v, params.v_strides, sequence, head, t);
      const std::uint32_t page = t / shape.page_tokens;
      const PageEntry entry = t < params.lengths[sequence] && page < shape.max_pages
                                  ? params.table[group * shape.max_pages + page]
                                  : kAbsentPage;
      if (entry == kAbsentPage) {
        std::memset(k, 0, bytes);
        std::memset(v, 0, bytes);
        continue;
      }
      const unsigned char* from = memory_at(entry_address(entry)) + (t % shape.page_tokens) * bytes;
      std::memcpy(k, from, bytes);
      std::memcpy(v, from + half, bytes);
    }
  }
  return {};
}

Status check_copy_rows(const StepShape& shape, const CopyRowsParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0 || params.heads == 0 || params.tokens == 0) return {};
  LEHR_TRY(check_pointer(params.from, 2, "from"));
  return check_pointer(params.to, 2, "to");
}

Status copy_rows_reference(const StepShape& shape, const CopyRowsParams& params) {
  LEHR_TRY(check_copy_rows(shape, params));
  for (std::size_t s = 0; s < shape.sequences; ++s) {
    for (std::size_t h = 0; h < params.heads; ++h) {
      for (std::size_t t = 0; t < params.tokens; ++t) {
        std::memcpy(row(params.to, params.to_strides, s, h, t),
                    row(params.from, params.from_strides, s, h, t), row_bytes(shape));
      }
    }
  }
  return {};
}

Status check_note(const StepShape& shape, const NoteParams& params) {
  LEHR_TRY(check_shape(shape));
  if (shape.sequences == 0) return {};
  LEHR_TRY(check_pointer(params.table, 8, "table"));
  LEHR_TRY(check_pointer(params.lengths, 4, "lengths"));
  LEHR_TRY(check_pointer(params.reads, 8, "reads"));
  if ((params.selection == nullptr) != (params.counts == nullptr))
    return invalid("selection and counts go together");
  if (params.pairs == nullptr) return {};
  LEHR_TRY(check_pointer(params.pairs, 8, "pairs"));
  LEHR_TRY(check_pointer(params.totals, 8, "totals"));
  if (params.first_row >= shape.rows())
    return invalid("first_row: past the group's rows", Reason::kOutOfRange);
  LEHR_TRY(check_pointer(params.mass, 1, "mass"));
  return check_pointer(params.peak, 1, "peak");
}

Status note_reads_reference(const StepShape& shape, const NoteParams& params) {
  LEHR_TRY(check_note(shape, params));
  const std::size_t pitch = params.selection != nullptr ? params.selection_pitch : shape.max_pages;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    const std::uint32_t pages =
        std::min(shape.pages_for(params.lengths[group / shape.kv_heads]), shape.max_pages);
    const std::uint32_t count =
        params.counts != nullptr ? std::min(params.counts[group], params.selection_pitch) : pages;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t page =
          params.selection != nullptr ? params.selection[group * pitch + i] : i;
      const PageEntry entry = params.table[group * shape.max_pages + page];
      ++params.reads[entry_over_link(entry) ? 1 : 0];
      if (params.pairs == nullptr) continue;
      float sum = 0, most = 0;
      for (std::uint32_t r = params.first_row; r < shape.rows(); ++r) {
        const SoftmaxPair pair = params.pairs[(group * pitch + i) * shape.rows() + r];
        const SoftmaxPair total = params.totals[group * shape.rows() + r];
        if (pair.d == 0.0F || total.d == 0.0F) continue;
        const float share = pair.d * std::exp2(pair.m - total.m) / total.d;
        sum += share;
        most = std::max(most, share);
      }
      const auto rows = static_cast<float>(shape.rows() - params.first_row);
      params.mass[group * pitch + i] = mass_code(sum / rows);
      params.peak[group * pitch + i] = mass_code(most);
    }
  }
  return {};
}

Status write_words_reference(const WriteWordsParams& params) {
  for (std::uint32_t i = 0; i < params.count; ++i)
    params.words[params.writes[i].index] = params.writes[i].value;
  return {};
}

}  // namespace lehr::kernels
