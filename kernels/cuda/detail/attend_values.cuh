// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_layout.cuh"
#include "kernels/cuda/detail/mma.cuh"

namespace lehr::kernels::cuda {

/// Reads stored K and V of a tile as fragments of 16-bit values.
///
/// All rows begin in the same bank, so lanes that read different rows at the same place would
/// collide. Where two loads belong together, half of the lanes therefore start with the other one
/// and swap afterwards; each of the two then meets other banks.
template <class F>
struct Values {
  using Math = Half16<typename F::T>;
  static constexpr std::uint32_t kDim = F::kDim;
  const unsigned char* smem;
  std::uint32_t g, c;  ///< lane / 4, lane % 4

  struct Pair {
    uint4 low, high;
  };

  __device__ explicit Values(const F& f) : smem(f.smem), g(f.lane / 4), c(f.lane % 4) {}

  template <class Word>
  __device__ Word load(std::uint32_t offset) const {
    return *reinterpret_cast<const Word*>(smem + offset);
  }
  /// The words at `first` and `first + step`, in an order that `flip` turns around.
  template <class Word>
  __device__ void load_two(std::uint32_t first, std::uint32_t step, bool flip, Word& low,
                           Word& high) const {
    const Word x = load<Word>(first + (flip ? step : 0)), y = load<Word>(first + (flip ? 0 : step));
    low = flip ? y : x;
    high = flip ? x : y;
  }

  static __device__ Half k_of(BlockWord block) {
    if (F::kForms == PageForms::kMixed) return block.k();
    return F::kForms == PageForms::kE4m3 ? Half::kE4m3 : Half::k16Bit;
  }
  static __device__ Half v_of(BlockWord block) {
    if (F::kForms == PageForms::kMixed) return block.v();
    return F::kForms == PageForms::kE4m3 ? Half::kE4m3 : Half::k16Bit;
  }
  static __device__ std::uint32_t v_offset(BlockWord block) {
    return block.offset() + F::Parts::bytes_of(k_of(block));
  }
  static __device__ std::uint32_t scales_offset(BlockWord block) {
    return v_offset(block) + F::Parts::bytes_of(v_of(block));
  }
  static __device__ std::uint32_t v_scales_offset(BlockWord block) {
    return scales_offset(block) + typename F::Parts{k_of(block), v_of(block)}.k_scales();
  }

  /// Scales of e4m3 halves; 1 for all others.
  __device__ float2 scales_of(BlockWord block) const {
    float2 scales = make_float2(1.0F, 1.0F);
    if (F::kForms == PageForms::k16Bit) return scales;
    if (k_of(block) == Half::kE4m3) scales.x = load<float>(scales_offset(block));
    if (v_of(block) == Half::kE4m3) {
      scales.y = load<float>(k_of(block) == Half::kE4m3 ? scales_offset(block) + 4
                                                        : v_scales_offset(block));
    }
    return scales;
  }

  /// int8 K's scales of channels 64 s + 16 c + 0 .. 15 of this lane, two fp16 a word.
  __device__ Pair key_scales(BlockWord block, std::uint32_t s) const {
    Pair p{};
    if (F::kForms != PageForms::kMixed || k_of(block) != Half::kInt8) return p;
    const std::uint32_t from = scales_offset(block) + (64 * s + 16 * c) * 2;
    return {load<uint4>(from), load<uint4>(from + 16)};
  }

  static __device__ uint4 widen_e4m3(std::uint32_t x, std::uint32_t y) {
    return make_uint4(Math::from_e4m3x2(x & 0xFFFFU), Math::from_e4m3x2(x >> 16),
                      Math::from_e4m3x2(y & 0xFFFFU), Math::from_e4m3x2(y >> 16));
  }
  static __device__ uint4 widen_int8(std::uint32_t x, std::uint32_t y, uint4 scales) {
    return make_uint4(
        Math::from_int8x2(x & 0xFFFFU, scales.x), Math::from_int8x2(x >> 16, scales.y),
        Math::from_int8x2(y & 0xFFFFU, scales.z), Math::from_int8x2(y >> 16, scales.w));
  }

  /// K of a token: channels 64 s + 16 c + 0 .. 15.
  __device__ Pair keys(BlockWord block, std::uint32_t token, std::uint32_t s,
                       const Pair& scales) const {
    Pair p;
    if (k_of(block) == Half::k16Bit) {
      load_two(block.offset() + token * kDim * 2 + 128 * s + 32 * c, 16U, (g & 1) != 0, p.low,
               p.high);
      return p;
    }
    const auto x = load<uint4>(block.offset() + token * kDim + 64 * s + 16 * c);
    if (F::kForms == PageForms::kMixed && k_of(block) == Half::kInt8) {
      return {widen_int8(x.x, x.y, scales.low), widen_int8(x.z, x.w, scales.high)};
    }
    return {widen_e4m3(x.x, x.y), widen_e4m3(x.z, x.w)};
  }

  /// V of a token: channels 128 pass + 16 g + 0 .. 15 (head_dim 64: low only, channels 8 g + 0 ..
  /// 7).
  __device__ Pair values(BlockWord block, std::uint32_t token, std::uint32_t pass) const {
    constexpr bool kOne = kDim == 64;
    const bool flip = (c & 1) != 0;
    Pair p{};
    const std::uint32_t from = v_offset(block);
    if (v_of(block) == Half::k16Bit) {
      const std::uint32_t at = from + token * kDim * 2 + (kOne ? 16 * g : 256 * pass + 32 * g);
      if (kOne) {
        p.low = load<uint4>(at);
      } else {
        load_two(at, 16U, flip, p.low, p.high);
      }
      return p;
    }
    const std::uint32_t at = from + token * kDim + (kOne ? 8 * g : 128 * pass + 16 * g);
    uint2 low, high{};
    if (kOne) {
      low = load<uint2>(at);
    } else {
      load_two(at, 8U, flip, low, high);
    }
    if (F::kForms == PageForms::kMixed && v_of(block) == Half::kInt8) {
      const std::uint32_t group = kOne ? g / 4 : 4 * pass + g / 2;
      const std::uint32_t scale =
          load<std::uint16_t>(v_scales_offset(block) + (token * (kDim / 32) + group) * 2);
      const std::uint32_t two = scale | scale << 16;
      const uint4 scales = make_uint4(two, two, two, two);
      p.low = widen_int8(low.x, low.y, scales);
      if (!kOne) p.high = widen_int8(high.x, high.y, scales);
      return p;
    }
    p.low = widen_e4m3(low.x, low.y);
    if (!kOne) p.high = widen_e4m3(high.x, high.y);
    return p;
  }
};

}  // namespace lehr::kernels::cuda
