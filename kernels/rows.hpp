// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attend.hpp"
#include "kernels/shape.hpp"

/// Between an engine's tensors and pages: rows of head_dim 16-bit elements that lie anywhere. And
/// what a step says of the pages that it read.
namespace lehr::kernels {

/// Distances in elements; a row itself is dense.
struct RowStrides {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
};

/// New tokens into pages: token j of sequence b is position before[b] + j. A page is written where
/// the table says, and to a second place where `copies` has one; the part of it that was there
/// before the tokens comes from `carried`. q_len is not looked at.
struct StoreParams {
  const void* k = nullptr;
  const void* v = nullptr;
  RowStrides k_strides, v_strides;
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint64_t* copies = nullptr;   ///< [sequences][kv_heads][pages], from the first page
                                           ///< that is written; 0: none
  const std::uint64_t* carried = nullptr;  ///< [sequences]: partial pages of all groups before the
                                           ///< tokens; 0: there are none
  const std::uint32_t* before = nullptr;   ///< [sequences]
  const std::uint32_t* tokens = nullptr;   ///< [sequences]
  std::uint64_t carried_offset = 0;        ///< of the layer's first group in `carried`, bytes
  std::uint32_t page_pitch = 0;            ///< bytes from group to group there
  std::uint32_t pages = 0;                 ///< written a group, at most
};

/// All tokens of each sequence out of its pages; rows from its length to `tokens` become 0.
struct LoadParams {
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences]
  void* k = nullptr;
  void* v = nullptr;
  RowStrides k_strides, v_strides;
  std::uint32_t tokens = 0;
  std::uint32_t reserved = 0;
};

/// [sequences][heads][tokens] rows of head_dim from one tensor to another.
struct CopyRowsParams {
  const void* from = nullptr;
  void* to = nullptr;
  RowStrides from_strides, to_strides;
  std::uint32_t heads = 0;
  std::uint32_t tokens = 0;
};

/// Of the pages on each group's list: where they were read, and the share of softmax mass of query
/// rows `first_row` .. rows() - 1 as codes (kernels/base/mass.hpp), mean and maximum over them.
struct NoteParams {
  const PageEntry* table = nullptr;
  const std::uint32_t* lengths = nullptr;
  const std::uint32_t* selection = nullptr;  ///< as attend's, or null
  const std::uint32_t* counts = nullptr;
  const SoftmaxPair* pairs = nullptr;   ///< of attend, or null: no codes
  const SoftmaxPair* totals = nullptr;  ///< of attend, or null
  std::uint8_t* mass = nullptr;         ///< [sequences][kv_heads][pitch] by list position, or null
  std::uint8_t* peak = nullptr;         ///< likewise
  std::uint64_t* reads = nullptr;       ///< two numbers that grow: read in HBM, over a link
  std::uint32_t selection_pitch = 0;
  std::uint32_t first_row = 0;
};

/// values[index] = value, for each of a list.
struct WordWrite {
  std::uint64_t value;
  std::uint64_t index;
};
static_assert(sizeof(WordWrite) == 16);
struct WriteWordsParams {
  const WordWrite* writes = nullptr;
  std::uint64_t* words = nullptr;
  std::uint32_t count = 0;
};

Status check_store(const StepShape& shape, const StoreParams& params);
Status store_rows_reference(const StepShape& shape, const StoreParams& params);
Status store_rows_cuda(const StepShape& shape, const StoreParams& params, void* stream);

Status check_load(const StepShape& shape, const LoadParams& params);
Status load_rows_reference(const StepShape& shape, const LoadParams& params);
Status load_rows_cuda(const StepShape& shape, const LoadParams& params, void* stream);

Status check_copy_rows(const StepShape& shape, const CopyRowsParams& params);
Status copy_rows_reference(const StepShape& shape, const CopyRowsParams& params);
Status copy_rows_cuda(const StepShape& shape, const CopyRowsParams& params, void* stream);

Status check_note(const StepShape& shape, const NoteParams& params);
Status note_reads_reference(const StepShape& shape, const NoteParams& params);
Status note_reads_cuda(const StepShape& shape, const NoteParams& params, void* stream);

Status write_words_reference(const WriteWordsParams& params);
Status write_words_cuda(const WriteWordsParams& params, void* stream);

}  // namespace lehr::kernels
