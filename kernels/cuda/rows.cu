// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/ids.hpp"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/rows.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

/// Rows are copied in pieces of 16 bytes where everything is aligned so, else of 2.
template <class Piece>
struct Rows {
  std::uint32_t pieces;  ///< of a row

  __device__ explicit Rows(const StepShape& shape)
      : pieces(2 * shape.head_dim / static_cast<std::uint32_t>(sizeof(Piece))) {}
  template <class Void>
  __device__ static auto at(Void* base, const RowStrides& s, std::uint32_t sequence,
                            std::uint32_t head, std::uint32_t token) {
    const auto offset =
        2 * (s.sequence * static_cast<std::int64_t>(sequence) +
             s.head * static_cast<std::int64_t>(head) + s.token * static_cast<std::int64_t>(token));
    using Byte = std::conditional_t<std::is_const_v<Void>, const unsigned char, unsigned char>;
    using To = std::conditional_t<std::is_const_v<Void>, const Piece, Piece>;
    return reinterpret_cast<To*>(reinterpret_cast<Byte*>(base) + offset);
  }
};

bool wide(const void* base, const RowStrides& s) {
  return reinterpret_cast<std::uintptr_t>(base) % 16 == 0 && s.sequence % 8 == 0 &&
         s.head % 8 == 0 && s.token % 8 == 0;
}

/// A CTA a page.
template <class Piece>
__global__ void __launch_bounds__(kThreads) store_kernel(StepShape shape, StoreParams p) {
  const std::uint32_t sequence = blockIdx.z, head = blockIdx.y;
  const std::uint32_t before = p.before[sequence], count = p.tokens[sequence];
  if (count == 0) return;
  const std::uint32_t end = before + count;
  const std::uint32_t page = before / shape.page_tokens + blockIdx.x;
  const std::uint32_t first = page * shape.page_tokens;
  if (first >= end || page >= shape.max_pages) return;
  const std::size_t group = std::size_t{sequence} * shape.kv_heads + head;
  const PageEntry entry = p.table[group * shape.max_pages + page];
  auto* to = entry == kAbsentPage ? nullptr : reinterpret_cast<Piece*>(entry_address(entry));
  Piece* copy = nullptr;
  if (p.copies != nullptr) copy = reinterpret_cast<Piece*>(p.copies[group * p.pages + blockIdx.x]);
  const Piece* old = nullptr;
  if (p.carried != nullptr && p.carried[sequence] != 0) {
    old = reinterpret_cast<const Piece*>(p.carried[sequence] + p.carried_offset +
                                         std::uint64_t{head} * p.page_pitch);
  }
  const Rows<Piece> rows(shape);
  const std::uint32_t half = shape.page_tokens * rows.pieces;
  for (std::uint32_t i = threadIdx.x; i < half; i += kThreads) {
    const std::uint32_t token = i / rows.pieces, piece = i % rows.pieces;
    const std::uint32_t position = first + token;
    if (position >= end) break;
    Piece k, v;
    if (position >= before) {
      k = Rows<Piece>::at(p.k, p.k_strides, sequence, head, position - before)[piece];
      v = Rows<Piece>::at(p.v, p.v_strides, sequence, head, position - before)[piece];
    } else if (old != nullptr) {
      k = old[i];
      v = old[half + i];
    } else {
      continue;
    }
    if (to != nullptr) {
      to[i] = k;
      to[half + i] = v;
    }
    if (copy != nullptr) {
      copy[i] = k;
      copy[half + i] = v;
    }
  }
}

template <class Piece>
__global__ void __launch_bounds__(kThreads) load_kernel(StepShape shape, LoadParams p) {
  const std::uint32_t sequence = blockIdx.z, head = blockIdx.y, page = blockIdx.x;
  const std::uint32_t length = p.lengths[sequence];
  const std::size_t group = std::size_t{sequence} * shape.kv_heads + head;
  const std::uint32_t first = page * shape.page_tokens;
  const PageEntry entry = first < length && page < shape.max_pages
                              ? p.table[group * shape.max_pages + page]
                              : kAbsentPage;
  const auto* from = reinterpret_cast<const Piece*>(entry_address(entry));
  const Rows<Piece> rows(shape);
  const std::uint32_t half = shape.page_tokens * rows.pieces;
  for (std::uint32_t i = threadIdx.x; i < half; i += kThreads) {
    const std::uint32_t token = i / rows.pieces, piece = i % rows.pieces;
    const std::uint32_t position = first + token;
    if (position >= p.tokens) break;
    Piece k{}, v{};
    if (entry != kAbsentPage && position < length) {
      k = from[i];
      v = from[half + i];
    }
    Rows<Piece>::at(p.k, p.k_strides, sequence, head, position)[piece] = k;
    Rows<Piece>::at(p.v, p.v_strides, sequence, head, position)[piece] = v;
  }
}

/// A warp a row.
template <class Piece>
__global__ void __launch_bounds__(kThreads) copy_kernel(StepShape shape, CopyRowsParams p) {
  const std::uint32_t token = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (token >= p.tokens) return;
  const Rows<Piece> rows(shape);
  const Piece* from = Rows<Piece>::at(p.from, p.from_strides, blockIdx.z, blockIdx.y, token);
  Piece* to = Rows<Piece>::at(p.to, p.to_strides, blockIdx.z, blockIdx.y, token);
  for (std::uint32_t i = threadIdx.x % 32; i < rows.pieces; i += 32) to[i] = from[i];
}

__device__ std::uint8_t code_of(float share) {
  if (!(share > 0.0F)) return kNoMass;
  const float c = roundf(-8.0F * log2f(share));
  return c >= 255.0F ? kNoMass : c <= 0.0F ? 0 : static_cast<std::uint8_t>(c);
}

__global__ void note_kernel(StepShape shape, NoteParams p) {
  cuda::ListItem item;
  const bool listed = cuda::list_item(shape, p, item);
  bool over_link = false;
  if (listed) {
    const std::size_t group = item.group;
    over_link = entry_over_link(p.table[group * shape.max_pages + item.page]);
    if (p.pairs != nullptr) {
      const std::size_t pitch = p.selection != nullptr ? p.selection_pitch : shape.max_pages;
      const std::uint32_t rows = shape.rows();
      const auto* pairs =
          reinterpret_cast<const float2*>(p.pairs) + (group * pitch + item.position) * rows;
      const auto* totals = reinterpret_cast<const float2*>(p.totals) + group * rows;
      float sum = 0.0F, most = 0.0F;
      for (std::uint32_t r = p.first_row; r < rows; ++r) {
        const float2 part = pairs[r], total = totals[r];
        if (part.y == 0.0F || total.y == 0.0F) continue;
        const float share = part.y * exp2f(part.x - total.x) / total.y;
        sum += share;
        most = fmaxf(most, share);
      }
      p.mass[group * pitch + item.position] = code_of(sum / static_cast<float>(rows - p.first_row));
      p.peak[group * pitch + item.position] = code_of(most);
    }
  }
  const int here = __syncthreads_count(listed && !over_link);
  const int there = __syncthreads_count(listed && over_link);
  if (threadIdx.x == 0) {
    auto* reads = reinterpret_cast<unsigned long long*>(p.reads);
    if (here > 0) atomicAdd(reads, static_cast<unsigned long long>(here));
    if (there > 0) atomicAdd(reads + 1, static_cast<unsigned long long>(there));
  }
}

__global__ void write_kernel(WriteWordsParams p) {
  const std::uint32_t stride = gridDim.x * blockDim.x;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += stride)
    p.words[p.writes[i].index] = p.writes[i].value;
}

Status ready(void* stream) {
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  return cuda::check_stream(static_cast<cudaStream_t>(stream), device);
}

Status check_grid(const StepShape& shape, std::uint32_t heads) {
  if (shape.sequences > 65535 || heads > 65535)
    return unsupported("more than 65535 sequences or heads a launch");
  return {};
}

}  // namespace

Status store_rows_cuda(const StepShape& shape, const StoreParams& params, void* stream) {
  LEHR_TRY(check_store(shape, params));
  if (shape.sequences == 0 || params.pages == 0) return {};
  LEHR_TRY(check_grid(shape, shape.kv_heads));
  LEHR_TRY(ready(stream));
  const bool wide_rows = wide(params.k, params.k_strides) && wide(params.v, params.v_strides);
  return cuda::launch(wide_rows ? store_kernel<uint4> : store_kernel<std::uint16_t>,
                      dim3(params.pages, shape.kv_heads, shape.sequences), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, shape, params);
}

Status load_rows_cuda(const StepShape& shape, const LoadParams& params, void* stream) {
  LEHR_TRY(check_load(shape, params));
  if (shape.sequences == 0 || params.tokens == 0) return {};
  LEHR_TRY(check_grid(shape, shape.kv_heads));
  LEHR_TRY(ready(stream));
  const bool wide_rows = wide(params.k, params.k_strides) && wide(params.v, params.v_strides);
  return cuda::launch(wide_rows ? load_kernel<uint4> : load_kernel<std::uint16_t>,
                      dim3(shape.pages_for(params.tokens), shape.kv_heads, shape.sequences),
                      dim3(kThreads), 0, static_cast<cudaStream_t>(stream), false, shape, params);
}

Status copy_rows_cuda(const StepShape& shape, const CopyRowsParams& params, void* stream) {
  LEHR_TRY(check_copy_rows(shape, params));
  if (shape.sequences == 0 || params.heads == 0 || params.tokens == 0) return {};
  LEHR_TRY(check_grid(shape, params.heads));
  LEHR_TRY(ready(stream));
  const bool wide_rows =
      wide(params.from, params.from_strides) && wide(params.to, params.to_strides);
  constexpr std::uint32_t kRows = kThreads / 32;
  return cuda::launch(wide_rows ? copy_kernel<uint4> : copy_kernel<std::uint16_t>,
                      dim3((params.tokens + kRows - 1) / kRows, params.heads, shape.sequences),
                      dim3(kThreads), 0, static_cast<cudaStream_t>(stream), false, shape, params);
}

Status note_reads_cuda(const StepShape& shape, const NoteParams& params, void* stream) {
  LEHR_TRY(check_note(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_TRY(ready(stream));
  const std::uint32_t items =
      params.selection != nullptr ? params.selection_pitch : shape.max_pages;
  return cuda::launch(note_kernel, cuda::grid_over(shape, items, kThreads), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, shape, params);
}

Status write_words_cuda(const WriteWordsParams& params, void* stream) {
  if (params.count == 0) return {};
  LEHR_TRY(ready(stream));
  const std::uint32_t ctas = (params.count + kThreads - 1) / kThreads;
  return cuda::launch(write_kernel, dim3(ctas < 1024 ? ctas : 1024), dim3(kThreads), 0,
                      static_cast<cudaStream_t>(stream), false, params);
}

}  // namespace lehr::kernels
