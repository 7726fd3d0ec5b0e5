// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/kernels/batch.hpp"

/// Recorded q, k and v as a batch: each sequence is one step of one layer. A file of them is a
/// plain dump, for machines that have no trace reader.
namespace lehr::kernels::test {

struct RecordedHead {
  std::uint32_t sequences, q_heads, kv_heads, head_dim, page_tokens, max_pages;
};

inline StepShape shape_of(const RecordedHead& h) {
  return shape_of(h.q_heads, h.kv_heads, h.head_dim, h.page_tokens, h.max_pages);
}

/// Writes head, lengths, q and each page's stored bytes in order of the table.
inline bool write_recorded(const Batch& b, const char* path) {
  std::FILE* file = std::fopen(path, "wb");
  if (file == nullptr) return false;
  const StepShape& s = b.shape;
  const RecordedHead head{s.sequences, s.q_heads,     s.kv_heads,
                          s.head_dim,  s.page_tokens, s.max_pages};
  bool good = std::fwrite(&head, sizeof head, 1, file) == 1;
  good = good && std::fwrite(b.lengths.data(), 4, b.lengths.size(), file) == b.lengths.size();
  good = good && std::fwrite(b.q.data(), 2, b.q.size(), file) == b.q.size();
  for (const PageEntry entry : b.table) {
    if (entry == kAbsentPage) continue;
    const std::size_t bytes = stored_page_bytes(s.dtype, s.page_tokens, s.head_dim);
    good = good && std::fwrite(page_memory(entry), 1, bytes, file) == bytes;
  }
  return std::fclose(file) == 0 && good;
}

inline std::optional<Batch> read_recorded(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return std::nullopt;
  RecordedHead head{};
  bool good = std::fread(&head, sizeof head, 1, file) == 1 && head.sequences <= 4096;
  std::optional<Batch> batch;
  if (good) {
    std::vector<std::uint32_t> lengths(head.sequences);
    good = std::fread(lengths.data(), 4, lengths.size(), file) == lengths.size();
    for (const std::uint32_t n : lengths) good = good && n <= head.max_pages * head.page_tokens;
    if (good) batch.emplace(shape_of(head), std::move(lengths), 1);
  }
  if (good) {
    good = std::fread(batch->q.data(), 2, batch->q.size(), file) == batch->q.size();
    for (const PageEntry entry : batch->table) {
      if (entry == kAbsentPage) continue;
      const std::size_t bytes =
          stored_page_bytes(batch->shape.dtype, head.page_tokens, head.head_dim);
      good = good && std::fread(page_memory(entry), 1, bytes, file) == bytes;
    }
  }
  std::fclose(file);
  return good ? std::move(batch) : std::nullopt;
}

}  // namespace lehr::kernels::test
