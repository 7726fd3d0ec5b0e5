// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/// Tensor-core and conversion primitives for the two 16-bit types.
namespace lehr::kernels::cuda {

template <class T>
struct Half16;

template <>
struct Half16<__half> {
  static __device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                             std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                             std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    const __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&h);
  }
  static __device__ __forceinline__ float2 unpack(std::uint32_t x) {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }
  static __device__ __forceinline__ std::uint32_t from_e4m3x2(std::uint32_t two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const __half2_raw h =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
    return static_cast<std::uint32_t>(h.x) | (static_cast<std::uint32_t>(h.y) << 16);
#else
    // Sign, exponent and digits at fp16's places are the value over 2^8, subnormals too. (The
    // library's form for older devices is so long that the kernel would compile for ten minutes.)
    const std::uint32_t high = __byte_perm(two, 0U, 0x1404);
    const std::uint32_t bits = (high & 0x80008000U) | (high & 0x7F007F00U) >> 1;
    const __half2 h = __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256.0F));
    return *reinterpret_cast<const std::uint32_t*>(&h);
#endif
  }
  /// Two int8 times two fp16 scales.
  static __device__ __forceinline__ std::uint32_t from_int8x2(std::uint32_t two,
                                                              std::uint32_t scales) {
    // 0x6400 is 1024: with the biased byte below it, 1152 + the value, exactly.
    const std::uint32_t biased = __byte_perm(two ^ 0x8080U, 0x64646464U, 0x4140);
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1152));
    const __half2 y = __hmul2(x, *reinterpret_cast<const __half2*>(&scales));
    return *reinterpret_cast<const std::uint32_t*>(&y);
  }
};

template <>
struct Half16<__nv_bfloat16> {
  static __device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                             std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                             std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&h);
  }
  static __device__ __forceinline__ float2 unpack(std::uint32_t x) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000U));
  }
  static __device__ __forceinline__ std::uint32_t from_e4m3x2(std::uint32_t two) {
    const float2 f = Half16<__half>::unpack(Half16<__half>::from_e4m3x2(two));
    return pack(f.x, f.y);
  }
  static __device__ __forceinline__ std::uint32_t from_int8x2(std::uint32_t two,
                                                              std::uint32_t scales) {
    const float2 s = Half16<__half>::unpack(scales);
    return pack(s.x * static_cast<float>(static_cast<signed char>(two & 0xFFU)),
                s.y * static_cast<float>(static_cast<signed char>(two >> 8)));
  }
};

/// Transposes an 8x8 matrix of 16-bit elements held one row in four lanes.
__device__ __forceinline__ std::uint32_t transpose8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lehr::kernels::cuda
