// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/detail/async.cuh"
#include "kernels/cuda/detail/launch.hpp"
#include "kernels/cuda/detail/mma.cuh"
#include "kernels/cuda/detail/values.cuh"
#include "kernels/score.hpp"

namespace lehr::kernels {
namespace {

constexpr std::uint32_t kWarps = 8;
constexpr std::uint32_t kPagesAWarp = 16;

/// A weight for each end of a box: the sum over channels of low * w_low + high * w_high is the
/// score.
template <class T>
__device__ __forceinline__ void end_weights(std::uint32_t q2, float outer, float inner,
                                            std::uint32_t& low, std::uint32_t& high) {
  const float2 q = cuda::Half16<T>::unpack(q2);
  const float2 up = make_float2(fmaxf(q.x, 0.0F), fmaxf(q.y, 0.0F));
  const float2 down = make_float2(fminf(q.x, 0.0F), fminf(q.y, 0.0F));
  high = cuda::Half16<T>::pack(up.x * outer + down.x * inner, up.y * outer + down.y * inner);
  low = cuda::Half16<T>::pack(down.x * outer + up.x * inner, down.y * outer + up.y * inner);
}

/// The larger magnitudes of two pairs of 16-bit values; of positive floats the bits are in order
/// too.
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a & 0x7FFF7FFFU, b);
}

/// What one block of 8 query rows brings to every page: the weights of box ends as fragments, and
/// sums of |q|.
struct QueryFragments {
  uint4* ends;      ///< [row block][step][low, high][lane]
  float* absolute;  ///< [row]
};

/// A warp scores 16 pages by tensor-core products of their boxes with the two weight vectors of
/// each query row. Boxes go straight from memory into fragments: a lane's 16 bytes are 8 channels,
/// in the same order as the query's.
template <class T, std::uint32_t kDim>
__device__ __forceinline__ void score_pages(const StepShape& shape, const ScoreParams& p,
                                            const QueryFragments& q, std::uint32_t group,
                                            std::uint32_t first, std::uint32_t pages) {
  constexpr std::uint32_t kSteps = kDim / 32;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const auto* boxes =
      static_cast<const uint4*>(p.boxes) + std::size_t{group} * shape.max_pages * (kDim / 4);
  uint4 ends[2][2][kSteps];  // [page half][low, high][step]
#pragma unroll
  for (std::uint32_t h = 0; h < 2; ++h) {
    const std::uint32_t page = first + g + 8 * h < pages ? first + g + 8 * h : pages - 1;
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      ends[h][0][s] = __ldg(boxes + std::size_t{page} * (kDim / 4) + 4 * s + c);
      ends[h][1][s] = __ldg(boxes + std::size_t{page} * (kDim / 4) + kDim / 8 + 4 * s + c);
    }
  }
  float peak[2];
#pragma unroll
  for (std::uint32_t h = 0; h < 2; ++h) {
    std::uint32_t most = 0;
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      for (const uint4& e : {ends[h][0][s], ends[h][1][s]}) {
        most = larger(e.x, larger(e.y, larger(e.z, larger(e.w, most))));
      }
    }
    const float2 both = cuda::Half16<T>::unpack(most);
    peak[h] = fmaxf(both.x, both.y);
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0U, peak[h], 1));
    peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0U, peak[h], 2));
  }

  float best[2] = {-INFINITY, -INFINITY};
  bool nan[2] = {false, false};
  for (std::uint32_t n = 0; n * 8 < shape.rows(); ++n) {
    float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      using Math = cuda::Half16<T>;
      const uint4 low = q.ends[((n * kSteps + s) * 2) * 32 + lane],
                  high = q.ends[((n * kSteps + s) * 2 + 1) * 32 + lane];
      Math::mma(sums, ends[0][0][s].x, ends[1][0][s].x, ends[0][0][s].y, ends[1][0][s].y, low.x,
                low.y);
      Math::mma(sums, ends[0][0][s].z, ends[1][0][s].z, ends[0][0][s].w, ends[1][0][s].w, low.z,
                low.w);
      Math::mma(sums, ends[0][1][s].x, ends[1][1][s].x, ends[0][1][s].y, ends[1][1][s].y, high.x,
                high.y);
      Math::mma(sums, ends[0][1][s].z, ends[1][1][s].z, ends[0][1][s].w, ends[1][1][s].w, high.z,
                high.w);
    }
    // Tensor cores cut digits: 16 to 32 sums of 17 terms, each off by at most 2^-23 of what they
    // can reach.
    constexpr float kSlack = 0x1p-15F;
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k) {
      const float slack =
          p.spread == 1.0F ? q.absolute[8 * n + 2 * c + k % 2] * peak[k / 2] * kSlack : 0.0F;
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

/// Warp n prepares row block n, n + warps, ...; rows past the end repeat the last one, which
/// changes no maximum.
template <class T, std::uint32_t kDim>
__device__ __forceinline__ void prepare_queries(const StepShape& shape, const ScoreParams& p,
                                                std::uint32_t group, const QueryFragments& to) {
  constexpr std::uint32_t kSteps = kDim / 32;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const std::uint32_t ratio = shape.ratio(), rows = shape.rows();
  const float outer = (1.0F + p.spread) / 2, inner = (1.0F - p.spread) / 2;
  for (std::uint32_t n = threadIdx.x / 32; n * 8 < rows; n += kWarps) {
    const std::uint32_t row = n * 8 + g < rows ? n * 8 + g : rows - 1;
    const std::size_t head = group % shape.kv_heads * ratio + row % ratio;
    const auto* q = reinterpret_cast<const uint4*>(
        static_cast<const T*>(p.q) +
        ((std::size_t{group / shape.kv_heads} * shape.q_len + row / ratio) * shape.q_heads + head) *
            kDim);
    float weight = 0.0F;
#pragma unroll
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      const uint4 x = __ldg(q + 4 * s + c);
      uint4 low, high;
      end_weights<T>(x.x, outer, inner, low.x, high.x);
      end_weights<T>(x.y, outer, inner, low.y, high.y);
      end_weights<T>(x.z, outer, inner, low.z, high.z);
      end_weights<T>(x.w, outer, inner, low.w, high.w);
      to.ends[((n * kSteps + s) * 2) * 32 + lane] = low;
      to.ends[((n * kSteps + s) * 2 + 1) * 32 + lane] = high;
      for (const std::uint32_t w : {x.x, x.y, x.z, x.w}) {
        const float2 f = cuda::Half16<T>::unpack(w);
        weight += fabsf(f.x) + fabsf(f.y);
      }
    }
    weight += __shfl_xor_sync(~0U, weight, 1);
    weight += __shfl_xor_sync(~0U, weight, 2);
    if (c == 0) to.absolute[n * 8 + g] = weight;
  }
}

template <class T, std::uint32_t kDim>
__global__ void __launch_bounds__(kWarps * 32, kDim == 256 ? 1 : 2)
    score_kernel(StepShape shape, ScoreParams p, std::uint32_t rounds) {
  extern __shared__ uint4 score_shared[];
  cuda::wait_for_previous_kernel();
  cuda::allow_next_kernel();
  const std::uint32_t group = blockIdx.y + blockIdx.z * gridDim.y;
  if (group >= shape.groups()) return;
  const std::uint32_t pages = cuda::sequence_pages(shape, p.lengths, group);
  const std::uint32_t begin = blockIdx.x * rounds * kWarps * kPagesAWarp;
  if (begin >= pages) return;
  const std::uint32_t row_blocks = (shape.rows() + 7) / 8;
  const QueryFragments q{score_shared,
                         reinterpret_cast<float*>(score_shared + row_blocks * (kDim / 32) * 64)};
  prepare_queries<T, kDim>(shape, p, group, q);
  __syncthreads();
#pragma unroll 1
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const std::uint32_t first = begin + (round * kWarps + threadIdx.x / 32) * kPagesAWarp;
    if (first >= pages) return;
    score_pages<T, kDim>(shape, p, q, group, first, pages);
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
  // One wave of CTAs, each with as many rounds as that takes: starting a CTA costs more than a
  // round.
  const std::uint32_t parts = (shape.max_pages + kWarps * kPagesAWarp - 1) / (kWarps * kPagesAWarp);
  const std::uint32_t resident = 2 * device.sms;
  std::uint32_t rounds =
      static_cast<std::uint32_t>((std::uint64_t{parts} * groups + resident - 1) / resident);
  rounds = rounds < parts ? rounds : parts;
  const dim3 grid((parts + rounds - 1) / rounds, y, (groups + y - 1) / y);
  void (*kernel)(StepShape, ScoreParams, std::uint32_t) = nullptr;
  const bool half = shape.dtype == DType::kF16;
  if (shape.head_dim == 64)
    kernel = half ? score_kernel<__half, 64> : score_kernel<__nv_bfloat16, 64>;
  if (shape.head_dim == 128)
    kernel = half ? score_kernel<__half, 128> : score_kernel<__nv_bfloat16, 128>;
  if (shape.head_dim == 256)
    kernel = half ? score_kernel<__half, 256> : score_kernel<__nv_bfloat16, 256>;
  const std::uint32_t row_blocks = (shape.rows() + 7) / 8;
  const std::uint32_t shared = row_blocks * (shape.head_dim / 32 * 64 * 16 + 8 * 4);
  LEHR_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
  return cuda::launch(kernel, grid, dim3(kWarps * 32), shared, s, device.bulk_copy, shape, params,
                      rounds);
}

}  // namespace lehr::kernels
