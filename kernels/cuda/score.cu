// SPDX-License-Identifier: Apache-2.0
#include "kernels/score.hpp"

#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/mma.cuh"
#include "kernels/cuda/detail/values.cuh"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kWarps = 8;
constexpr std::uint32_t kPagesAWarp = 16;

/// A weight for each end of a box: the sum over channels of low * w_low + high * w_high is the score.
template <class T>
__device__ __forceinline__ void end_weights(std::uint32_t q2, float outer, float inner, std::uint32_t& low,
                                            std::uint32_t& high) {
  const float2 q = cuda::Half16<T>::unpack(q2);
  const float2 up = make_float2(fmaxf(q.x, 0.0F), fmaxf(q.y, 0.0F));
  const float2 down = make_float2(fminf(q.x, 0.0F), fminf(q.y, 0.0F));
  high = cuda::Half16<T>::pack(up.x * outer + down.x * inner, up.y * outer + down.y * inner);
  low = cuda::Half16<T>::pack(down.x * outer + up.x * inner, down.y * outer + up.y * inner);
}

template <class T>
__device__ __forceinline__ float largest(std::uint32_t a, float so_far) {
  const float2 f = cuda::Half16<T>::unpack(a & 0x7FFF7FFFU);
  return fmaxf(so_far, fmaxf(f.x, f.y));
}

/// A warp scores 16 pages by tensor-core products of their boxes with the two weight vectors of each query row.
/// Boxes go straight from memory into fragments: a lane's 16 bytes are 8 channels, in the same order as the query's.
template <class T, std::uint32_t kDim>
__global__ void __launch_bounds__(kWarps * 32) score_kernel(StepShape shape, ScoreParams p) {
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  constexpr std::uint32_t kSteps = kDim / 32;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  if (group >= shape.groups()) return;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  const std::uint32_t first = (blockIdx.x * kWarps + threadIdx.x / 32) * kPagesAWarp;
  if (first >= pages) return;

  const auto* boxes = static_cast<const uint4*>(p.boxes) + std::size_t{group} * shape.max_pages * (kDim / 4);
  uint4 ends[2][2][kSteps];  // [page half][low, high][step]
  float peak[2] = {0.0F, 0.0F};
#pragma unroll
  for (std::uint32_t h = 0; h < 2; ++h) {
    const std::uint32_t page = first + g + 8 * h < pages ? first + g + 8 * h : pages - 1;
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      ends[h][0][s] = __ldg(boxes + std::size_t{page} * (kDim / 4) + 4 * s + c);
      ends[h][1][s] = __ldg(boxes + std::size_t{page} * (kDim / 4) + kDim / 8 + 4 * s + c);
    }
  }
#pragma unroll
  for (std::uint32_t h = 0; h < 2; ++h) {
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      for (const uint4& e : {ends[h][0][s], ends[h][1][s]}) {
        peak[h] = largest<T>(e.x, largest<T>(e.y, largest<T>(e.z, largest<T>(e.w, peak[h]))));
      }
    }
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0U, peak[h], 1));
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0U, peak[h], 2));
  }

  const float outer = (1.0F + p.spread) / 2, inner = (1.0F - p.spread) / 2;
  float best[2] = {-INFINITY, -INFINITY};
  bool nan[2] = {false, false};
  const std::uint32_t ratio = shape.ratio(), rows = shape.rows();
  for (std::uint32_t n = 0; n < rows; n += 8) {
    const std::uint32_t row = n + g < rows ? n + g : rows - 1;  // a repeated row changes no maximum
    const std::size_t head = group % shape.kv_heads * ratio + row % ratio;
    const auto* q = reinterpret_cast<const uint4*>(
        static_cast<const T*>(p.q) +
        ((std::size_t{group / shape.kv_heads} * shape.q_len + row / ratio) * shape.q_heads + head) * kDim);
    float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float weight = 0.0F;  // sum of |q| of row n + g
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      const uint4 x = __ldg(q + 4 * s + c);
      uint4 low, high;
      end_weights<T>(x.x, outer, inner, low.x, high.x);
      end_weights<T>(x.y, outer, inner, low.y, high.y);
      end_weights<T>(x.z, outer, inner, low.z, high.z);
      end_weights<T>(x.w, outer, inner, low.w, high.w);
      for (const std::uint32_t w : {x.x, x.y, x.z, x.w}) {
        const float2 f = cuda::Half16<T>::unpack(w);
        weight += fabsf(f.x) + fabsf(f.y);
      }
      using Math = cuda::Half16<T>;
      Math::mma(sums, ends[0][0][s].x, ends[1][0][s].x, ends[0][0][s].y, ends[1][0][s].y, low.x, low.y);
      Math::mma(sums, ends[0][0][s].z, ends[1][0][s].z, ends[0][0][s].w, ends[1][0][s].w, low.z, low.w);
      Math::mma(sums, ends[0][1][s].x, ends[1][1][s].x, ends[0][1][s].y, ends[1][1][s].y, high.x, high.y);
      Math::mma(sums, ends[0][1][s].z, ends[1][1][s].z, ends[0][1][s].w, ends[1][1][s].w, high.z, high.w);
    }
    weight += __shfl_xor_sync(~0U, weight, 1);
    weight += __shfl_xor_sync(~0U, weight, 2);
    // Tensor cores cut digits: 16 to 32 sums of 17 terms, each off by at most 2^-23 of what they can reach.
    constexpr float kSlack = 0x1p-15F;
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k) {
      const float of_row = __shfl_sync(~0U, weight, static_cast<int>(4 * (2 * c + k % 2)));
      const float slack = p.spread == 1.0F ? of_row * peak[k / 2] * kSlack : 0.0F;
      const float score = sums[k] + slack;
      nan[k / 2] = nan[k / 2] || isnan(score);
      best[k / 2] = fmaxf(best[k / 2], score);
    }
  }
#pragma unroll
  for (std::uint32_t h = 0; h < 2; ++h) {
    if (nan[h]) best[h] = INFINITY;  // must not hide a page
    best[h] = fmaxf(best[h], __shfl_xor_sync(~0U, best[h], 1));
    best[h] = fmaxf(best[h], __shfl_xor_sync(~0U, best[h], 2));
    const std::uint32_t page = first + g + 8 * h;
    if (c == 0 && page < pages) p.scores[std::size_t{group} * shape.max_pages + page] = best[h];
  }
}

}  // namespace

Status score_cuda(const StepShape& shape, const ScoreParams& params, void* stream) {
  LEHR_TRY(check_score(shape, params));
  if (shape.sequences == 0) return {};
  LEHR_ASSIGN(const cuda::DeviceFacts device, cuda::current_device());
  const auto s = static_cast<cudaStream_t>(stream);
  LEHR_TRY(cuda::check_stream(s, device));
  const auto groups = static_cast<std::uint32_t>(shape.groups());
  const std::uint32_t y = groups < 32768 ? groups : 32768;
  const dim3 grid((shape.max_pages + kWarps * kPagesAWarp - 1) / (kWarps * kPagesAWarp), y, (groups + y - 1) / y);
  void (*kernel)(StepShape, ScoreParams) = nullptr;
  const bool half = shape.dtype == DType::kF16;
  if (shape.head_dim == 64) kernel = half ? score_kernel<__half, 64> : score_kernel<__nv_bfloat16, 64>;
  if (shape.head_dim == 128) kernel = half ? score_kernel<__half, 128> : score_kernel<__nv_bfloat16, 128>;
  if (shape.head_dim == 256) kernel = half ? score_kernel<__half, 256> : score_kernel<__nv_bfloat16, 256>;
  return cuda::launch(kernel, grid, dim3(kWarps * 32), 0, s, device.bulk_copy, shape, params);
}

}  // namespace lehr::kernels
