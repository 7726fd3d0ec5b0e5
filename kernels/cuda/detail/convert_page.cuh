// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/values.cuh"

/// One page from one stored format to another, by a whole CTA.
namespace lehr::kernels::cuda {

/// CTAs that convert a page have these threads, all of them here.
inline constexpr std::uint32_t kPageThreads = 128;

/// A page to be read value by value.
struct Page {
  const unsigned char* from;
  PageFormat format;
  std::uint32_t tokens, dim;

  __device__ float value(std::uint32_t what, std::uint32_t token, std::uint32_t channel) const {
    return stored(from, format, tokens, dim, what, token, channel);
  }
  __device__ float finite(std::uint32_t what, std::uint32_t token, std::uint32_t channel) const {
    const float x = value(what, token, channel);
    return isfinite(x) ? x : 0.0F;
  }
};

__device__ inline float block_maximum(float x) {
  __shared__ float of_warp[kPageThreads / 32];
  for (std::uint32_t d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  for (std::uint32_t w = 0; w < kPageThreads / 32; ++w) x = fmaxf(x, of_warp[w]);
  return x;
}

__device__ inline void to_e4m3(const Page& page, std::uint32_t what, unsigned char* out,
                               float* to_scale) {
  const std::uint32_t half = page.tokens * page.dim;
  float peak = 0.0F;
  for (std::uint32_t i = threadIdx.x; i < half; i += kPageThreads) {
    peak = fmaxf(peak, fabsf(page.finite(what, i / page.dim, i % page.dim)));
  }
  peak = block_maximum(peak);
  const float scale = peak > 0.0F ? peak / 448.0F : 1.0F;
  const float inverse = 1.0F / scale;
  for (std::uint32_t i = threadIdx.x; i < half; i += kPageThreads) {
    out[i] = __nv_cvt_float_to_fp8(page.finite(what, i / page.dim, i % page.dim) * inverse,
                                   __NV_SATFINITE, __NV_E4M3);
  }
  if (threadIdx.x == 0) *to_scale = scale;
}

/// See the reference for why K's scales keep four digits.
__device__ inline float int8_scale(float peak, bool four_digits, void* scales, std::size_t index) {
  float scale = peak > 0.0F ? peak / 127.0F : 1.0F;
  scale = fminf(fmaxf(scale, 0x1p-14F), 61440.0F);
  unsigned short bits = __half_as_ushort(__float2half_ru(scale));
  if (four_digits) bits = static_cast<unsigned short>((bits + 0x7FU) & ~0x7FU);
  const __half stored = __ushort_as_half(bits);
  static_cast<__half*>(scales)[index] = stored;
  return 1.0F / __half2float(stored);
}
__device__ inline unsigned char to_int8(float x, float inverse) {
  const float q = fminf(fmaxf(rintf(x * inverse), -127.0F), 127.0F);
  return static_cast<unsigned char>(static_cast<signed char>(q));
}

__device__ inline void to_int8_k(const Page& page, unsigned char* out, unsigned char* scales) {
  const std::uint32_t k_groups = (page.tokens + 31) / 32;
  for (std::uint32_t x = threadIdx.x; x < k_groups * page.dim; x += kPageThreads) {
    const std::uint32_t first = x / page.dim * 32, c = x % page.dim;
    const std::uint32_t last = first + 32 < page.tokens ? first + 32 : page.tokens;
    float peak = 0.0F;
    for (std::uint32_t t = first; t < last; ++t) peak = fmaxf(peak, fabsf(page.finite(0, t, c)));
    const float inverse = int8_scale(peak, true, scales, x);
    for (std::uint32_t t = first; t < last; ++t)
      out[t * page.dim + c] = to_int8(page.finite(0, t, c), inverse);
  }
}

__device__ inline void to_int8_v(const Page& page, unsigned char* out, unsigned char* scales) {
  const std::uint32_t parts = page.dim / 32;
  for (std::uint32_t x = threadIdx.x; x < page.tokens * parts; x += kPageThreads) {
    const std::uint32_t t = x / parts, first = x % parts * 32;
    float peak = 0.0F;
    for (std::uint32_t c = first; c < first + 32; ++c)
      peak = fmaxf(peak, fabsf(page.finite(1, t, c)));
    const float inverse = int8_scale(peak, false, scales, x);
    for (std::uint32_t c = first; c < first + 32; ++c)
      out[t * page.dim + c] = to_int8(page.finite(1, t, c), inverse);
  }
}

/// All threads of the CTA; what they wrote before is read after a barrier.
__device__ inline void convert_page(const Page& page, PageFormat to_format, unsigned char* out) {
  const std::uint32_t half = page.tokens * page.dim;
  const bool shared = to_format == PageFormat(DType::kE4m3);
  auto* scales = out + half * (element_bytes(to_format.k) + element_bytes(to_format.v));
  const std::uint32_t words = scale_bytes(to_format, page.tokens, page.dim) / 4;
  for (std::uint32_t i = threadIdx.x; i < words; i += kPageThreads) {
    reinterpret_cast<std::uint32_t*>(scales)[i] = 0;
  }
  __syncthreads();
  for (std::uint32_t what = 0; what < 2; ++what) {
    const DType to = what == 0 ? to_format.k : to_format.v;
    if (what == 1) scales += shared ? 4 : k_scale_bytes(to_format, page.tokens, page.dim);
    if (to == DType::kE4m3) {
      to_e4m3(page, what, out, reinterpret_cast<float*>(scales));
    } else if (to == DType::kInt8) {
      if (what == 0) to_int8_k(page, out, scales);
      if (what == 1) to_int8_v(page, out, scales);
    } else {
      for (std::uint32_t i = threadIdx.x; i < half; i += kPageThreads) {
        store_half(to, out, i, page.value(what, i / page.dim, i % page.dim));
      }
    }
    out += half * element_bytes(to);
  }
}

}  // namespace lehr::kernels::cuda
