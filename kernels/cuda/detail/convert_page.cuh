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

/// Eight values side by side of a half page in 16 bits, from one load.
__device__ inline void eight_of(DType type, const uint4& words, float (&x)[8]) {
  const std::uint32_t parts[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 two;
    if (type == DType::kBf16) {
      two = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(parts[i]));
    } else {
      two = __half22float2(reinterpret_cast<const __half2&>(parts[i]));
    }
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

/// to_e4m3 of 16-bit values eight at a time: the same bits, a quarter of the time. Both ends start
/// at multiples of 16.
__device__ inline void e4m3_of_16_bits(const Page& page, std::uint32_t what, unsigned char* out,
                                       float* to_scale) {
  const std::uint32_t half = page.tokens * page.dim;
  const DType type = what == 0 ? page.format.k : page.format.v;
  const auto* from = reinterpret_cast<const uint4*>(
      page.from + (what == 0 ? 0 : half * element_bytes(page.format.k)));
  float x[8];
  float peak = 0.0F;
  for (std::uint32_t i = threadIdx.x; i < half / 8; i += kPageThreads) {
    eight_of(type, from[i], x);
#pragma unroll
    for (const float v : x) peak = fmaxf(peak, isfinite(v) ? fabsf(v) : 0.0F);
  }
  peak = block_maximum(peak);
  const float scale = peak > 0.0F ? peak / 448.0F : 1.0F;
  const float inverse = 1.0F / scale;
  for (std::uint32_t i = threadIdx.x; i < half / 8; i += kPageThreads) {
    eight_of(type, from[i], x);
    std::uint32_t codes[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v = isfinite(x[j]) ? x[j] * inverse : 0.0F;
      codes[j / 4] |= std::uint32_t{__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)}
                      << (j % 4 * 8);
    }
    reinterpret_cast<uint2*>(out)[i] = make_uint2(codes[0], codes[1]);
  }
  if (threadIdx.x == 0) *to_scale = scale;
}

/// e4m3 values to 16 bits, eight at a time.
__device__ inline void widen_e4m3(const Page& page, std::uint32_t what, DType to,
                                  unsigned char* out) {
  const std::uint32_t half = page.tokens * page.dim;
  const auto* from = reinterpret_cast<const uint2*>(
      page.from + (what == 0 ? 0 : half * element_bytes(page.format.k)));
  const unsigned char* scales =
      page.from + half * (element_bytes(page.format.k) + element_bytes(page.format.v));
  if (what == 1) {
    scales += page.format == PageFormat(DType::kE4m3)
                  ? 4
                  : k_scale_bytes(page.format, page.tokens, page.dim);
  }
  const float scale = *reinterpret_cast<const float*>(scales);
  for (std::uint32_t i = threadIdx.x; i < half / 8; i += kPageThreads) {
    const uint2 codes = from[i];
    alignas(16) unsigned short wide[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto code = static_cast<__nv_fp8_storage_t>((j < 4 ? codes.x : codes.y) >> (j % 4 * 8));
      const float v = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale;
      store_half(to, wide, j, v);
    }
    reinterpret_cast<uint4*>(out)[i] = *reinterpret_cast<const uint4*>(wide);
  }
}

constexpr bool has_16_bits(DType type) { return type == DType::kF16 || type == DType::kBf16; }

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
    const DType from = what == 0 ? page.format.k : page.format.v;
    if (what == 1) scales += shared ? 4 : k_scale_bytes(to_format, page.tokens, page.dim);
    if (to == DType::kE4m3 && has_16_bits(from)) {
      e4m3_of_16_bits(page, what, out, reinterpret_cast<float*>(scales));
    } else if (has_16_bits(to) && from == DType::kE4m3) {
      widen_e4m3(page, what, to, out);
    } else if (to == DType::kE4m3) {
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
