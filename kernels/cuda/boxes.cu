// SPDX-License-Identifier: Apache-2.0
#include "kernels/append.hpp"
#include "kernels/boxes.hpp"
#include "kernels/cuda/detail/convert_page.cuh"
#include "kernels/cuda/detail/launch.hpp"

namespace lehr::kernels {
namespace {

using cuda::load_half;

/// A warp a page; each lane looks after every 32nd channel.
__global__ void boxes_kernel(StepShape shape, BoxesParams p) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  const std::uint32_t page = p.first_page + blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (group >= shape.groups() || page >= cuda::sequence_pages(shape, p.lengths, group)) return;
  const std::size_t at = std::size_t{group} * shape.max_pages + page;
  const PageEntry entry = p.table[at];
  if (entry == kAbsentPage) return;
  const std::uint32_t left = p.lengths[group / shape.kv_heads] - page * shape.page_tokens;
  const std::uint32_t tokens = left < shape.page_tokens ? left : shape.page_tokens;
  auto* box = static_cast<unsigned char*>(p.boxes) + at * 4 * shape.head_dim;
  for (std::uint32_t c = lane; c < shape.head_dim; c += 32) {
    float low = INFINITY, high = -INFINITY;
    bool nan = false;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const float k = cuda::stored(cuda::page_bytes(entry), entry_formats(entry), shape.page_tokens,
                                   shape.head_dim, 0, t, c);
      nan = nan || isnan(k);
      low = fminf(low, k);
      high = fmaxf(high, k);
    }
    cuda::store_half_outward(shape.dtype, box, c, nan ? -INFINITY : low, false);
    cuda::store_half_outward(shape.dtype, box, shape.head_dim + c, nan ? INFINITY : high, true);
  }
}

/// A warp a block.
__global__ void coarse_kernel(StepShape shape, CoarseParams p) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  const std::uint32_t block = p.first_block + blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (group >= shape.groups()) return;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  const std::uint32_t blocks = (pages + p.block_pages - 1) / p.block_pages;
  if (blockIdx.x == 0 && threadIdx.x == 0 && group % shape.kv_heads == 0)
    p.coarse_lengths[group / shape.kv_heads] = blocks * shape.page_tokens;
  if (block >= blocks) return;
  const std::uint32_t first = block * p.block_pages;
  const std::uint32_t last = first + p.block_pages < pages ? first + p.block_pages : pages;
  auto* to = static_cast<unsigned char*>(p.coarse) +
             (std::size_t{group} * p.blocks(shape) + block) * 4 * shape.head_dim;
  for (std::uint32_t c = lane; c < shape.head_dim; c += 32) {
    float low = INFINITY, high = -INFINITY;
    for (std::uint32_t page = first; page < last; ++page) {
      const std::size_t box = (std::size_t{group} * shape.max_pages + page) * 2 * shape.head_dim;
      low = fminf(low, load_half(shape.dtype, p.boxes, box + c));
      high = fmaxf(high, load_half(shape.dtype, p.boxes, box + shape.head_dim + c));
    }
    cuda::store_half(shape.dtype, to, c, low);
    cuda::store_half(shape.dtype, to, shape.head_dim + c, high);
  }
}

/// One group's tokens, in order, so that a page's box starts with its first token: a thread looks
/// after channels of its own. Returns the page that they completed, or kNone.
constexpr std::uint32_t kNone = ~0U;
__device__ std::uint32_t append_group(const StepShape& shape, const AppendParams& p,
                                      std::uint32_t group) {
  const std::uint32_t sequence = group / shape.kv_heads;
  const std::uint32_t length = p.lengths[sequence];
  std::uint32_t completed = kNone;
  if (length < shape.q_len || (length - 1) / shape.page_tokens >= shape.max_pages) return completed;
  for (std::uint32_t j = 0; j < shape.q_len; ++j) {
    const std::uint32_t position = length - shape.q_len + j;
    const std::uint32_t page = position / shape.page_tokens, token = position % shape.page_tokens;
    const std::size_t at = std::size_t{group} * shape.max_pages + page;
    const PageEntry entry = p.table[at];
    if (entry == kAbsentPage || entry_formats(entry) != PageFormat(shape.dtype)) {
      if (threadIdx.x == 0 && p.absent != nullptr) atomicAdd(p.absent, 1U);
      continue;
    }
    if (token + 1 == shape.page_tokens) completed = page;
    const std::size_t from =
        ((std::size_t{sequence} * shape.q_len + j) * shape.kv_heads + group % shape.kv_heads) *
        shape.head_dim;
    auto* k_row = reinterpret_cast<std::uint16_t*>(entry_address(entry)) +
                  std::size_t{token} * shape.head_dim;
    auto* v_row = k_row + std::size_t{shape.page_tokens} * shape.head_dim;
    for (std::uint32_t c = threadIdx.x; c < shape.head_dim; c += cuda::kPageThreads) {
      const std::uint16_t k = static_cast<const std::uint16_t*>(p.k)[from + c];
      k_row[c] = k;
      v_row[c] = static_cast<const std::uint16_t*>(p.v)[from + c];
      if (p.boxes == nullptr) continue;
      auto* box = static_cast<std::uint16_t*>(p.boxes) + at * 2 * shape.head_dim;
      const float value = load_half(shape.dtype, p.k, from + c);
      const bool first = token == 0;
      if (isnan(value)) {
        cuda::store_half(shape.dtype, box, c, -INFINITY);
        cuda::store_half(shape.dtype, box, shape.head_dim + c, INFINITY);
        continue;
      }
      if (first || value < load_half(shape.dtype, box, c)) box[c] = k;
      if (first || value > load_half(shape.dtype, box, shape.head_dim + c))
        box[shape.head_dim + c] = k;
    }
  }
  return completed;
}

/// A CTA a group, for the rows are short and their latency is all there is; where asked, it also
/// converts the page that is complete then.
__global__ void __launch_bounds__(cuda::kPageThreads)
    append_kernel(StepShape shape, AppendParams p) {
  const std::uint32_t group = blockIdx.x;
  const std::uint32_t page = append_group(shape, p, group);
  if (p.completed == nullptr) return;
  auto* out = reinterpret_cast<unsigned char*>(p.completed[group]);
  if (page == kNone || out == nullptr) return;  // the whole CTA
  __syncthreads();
  const std::size_t at = std::size_t{group} * shape.max_pages + page;
  cuda::convert_page(
      {cuda::page_bytes(p.table[at]), PageFormat(shape.dtype), shape.page_tokens, shape.head_dim},
      p.to, out);
  if (p.boxes == nullptr) return;
  __syncthreads();
  auto* box = static_cast<std::uint16_t*>(p.boxes) + at * 2 * shape.head_dim;
  for (std::uint32_t c = threadIdx.x; c < shape.head_dim; c += cuda::kPageThreads) {
    float low = load_half(shape.dtype, box, c);
    float high = load_half(shape.dtype, box, shape.head_dim + c);
    bool nan = false;
    for (std::uint32_t t = 0; t < shape.page_tokens; ++t) {
      const float k = cuda::stored(out, p.to, shape.page_tokens, shape.head_dim, 0, t, c);
      nan = nan || isnan(k);
      low = fminf(low, k);
      high = fmaxf(high, k);
    }
    cuda::store_half_outward(shape.dtype, box, c, nan ? -INFINITY : low, false);
    cuda::store_half_outward(shape.dtype, box, shape.head_dim + c, nan ? INFINITY : high, true);
  }
}

}  // namespace

Status boxes_cuda(const StepShape& shape, const BoxesParams& params, void* stream) {
  LEHR_TRY(check_boxes(shape, params));
  if (shape.sequences == 0 || params.first_page >= shape.max_pages) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t y = groups < 32768 ? groups : 32768;
  const dim3 grid((shape.max_pages - params.first_page + 7) / 8, y, (groups + y - 1) / y);
  return cuda::launch(boxes_kernel, grid, dim3(256), 0, s, false, shape, params);
}

Status coarse_cuda(const StepShape& shape, const CoarseParams& params, void* stream) {
  LEHR_TRY(check_coarse(shape, params));
  const std::uint32_t blocks = params.blocks(shape);
  if (shape.sequences == 0 || params.first_block >= blocks) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t y = groups < 32768 ? groups : 32768;
  const dim3 grid((blocks - params.first_block + 7) / 8, y, (groups + y - 1) / y);
  return cuda::launch(coarse_kernel, grid, dim3(256), 0, s, false, shape, params);
}

Status append_cuda(const StepShape& shape, const AppendParams& params, void* stream) {
  LEHR_TRY(check_append(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  return cuda::launch(append_kernel, dim3(groups), dim3(cuda::kPageThreads), 0, s, false, shape,
                      params);
}

}  // namespace lehr::kernels
