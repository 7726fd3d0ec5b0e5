// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_layout.cuh"
#include "kernels/cuda/detail/mma.cuh"

namespace lehr::kernels::cuda {

/// How the halves of blocks are stored: known when compiled, or looked up block by block.
template <Half kK, Half kV>
struct StoredAs {
  static __device__ Half k(BlockWord) { return kK; }
  static __device__ Half v(BlockWord) { return kV; }
};
struct StoredAsSaid {
  static __device__ Half k(BlockWord block) { return block.k(); }
  static __device__ Half v(BlockWord block) { return block.v(); }
};

/// Reads stored K and V of a tile as fragments of 16-bit values.
///
/// All rows begin in the same bank, so lanes that read different rows at the same place would
/// collide. Where two loads belong together, half of the lanes therefore start with the other one
/// and swap afterwards; each of the two then meets other banks.
template <class F, class As>
struct Values {
  using Math = Half16<typename F::T>;
  static constexpr std::uint32_t kDim = F::kDim;
  const unsigned char* smem;
  std::uint32_t g, c;            ///< lane / 4, lane % 4
  std::uint32_t k_turn, v_turn;  ///< all ones in lanes that start with the second of two loads

  struct Pair {
    uint4 low, high;
  };

  __device__ explicit Values(const F& f) : smem(f.smem), g(f.lane / 4), c(f.lane % 4) {
    k_turn = 0U - (g & 1);
    v_turn = 0U - (c & 1);
    // The compiler would see that loads are swapped twice, and load in the order that collides.
    asm("" : "+r"(k_turn), "+r"(v_turn));
  }
  /// The same reader for blocks stored in another way.
  template <class Other>
  __device__ explicit Values(const Values<F, Other>& x)
      : smem(x.smem), g(x.g), c(x.c), k_turn(x.k_turn), v_turn(x.v_turn) {}

  template <class Word>
  __device__ Word load(std::uint32_t offset) const {
    return *reinterpret_cast<const Word*>(smem + offset);
  }
  /// x where `turn` is 0, y where it is all ones. As bits: a condition would become a branch.
  static __device__ std::uint32_t pick(std::uint32_t turn, std::uint32_t x, std::uint32_t y) {
    return (x & ~turn) | (y & turn);
  }
  static __device__ uint2 pick(std::uint32_t turn, uint2 x, uint2 y) {
    return make_uint2(pick(turn, x.x, y.x), pick(turn, x.y, y.y));
  }
  static __device__ uint4 pick(std::uint32_t turn, uint4 x, uint4 y) {
    return make_uint4(pick(turn, x.x, y.x), pick(turn, x.y, y.y), pick(turn, x.z, y.z),
                      pick(turn, x.w, y.w));
  }
  /// The words at `first` and `first` plus their size, loaded in an order that `turn` turns around.
  template <class Word>
  __device__ void load_two(std::uint32_t first, std::uint32_t turn, Word& low, Word& high) const {
    constexpr std::uint32_t kStep = sizeof(Word);
    const Word x = load<Word>(first + (kStep & turn)), y = load<Word>(first + (kStep & ~turn));
    low = pick(turn, x, y);
    high = pick(turn, y, x);
  }

  static __device__ Half k_of(BlockWord block) { return As::k(block); }
  static __device__ Half v_of(BlockWord block) { return As::v(block); }
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
    if (k_of(block) != Half::kInt8) return p;
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
  __device__ __forceinline__ Pair keys(BlockWord block, std::uint32_t token, std::uint32_t s,
                                       const Pair& scales) const {
    Pair p;
    if (k_of(block) == Half::k16Bit) {
      load_two(block.offset() + token * kDim * 2 + 128 * s + 32 * c, k_turn, p.low, p.high);
      return p;
    }
    const auto x = load<uint4>(block.offset() + token * kDim + 64 * s + 16 * c);
    if (k_of(block) == Half::kInt8) {
      return {widen_int8(x.x, x.y, scales.low), widen_int8(x.z, x.w, scales.high)};
    }
    return {widen_e4m3(x.x, x.y), widen_e4m3(x.z, x.w)};
  }

  /// V of a token: channels 128 pass + 16 g + 0 .. 15 (head_dim 64: low only, channels 8 g + 0 ..
  /// 7).
  __device__ __forceinline__ Pair values(BlockWord block, std::uint32_t token,
                                         std::uint32_t pass) const {
    constexpr bool kOne = kDim == 64;
    Pair p{};
    const std::uint32_t from = v_offset(block);
    if (v_of(block) == Half::k16Bit) {
      const std::uint32_t at = from + token * kDim * 2 + (kOne ? 16 * g : 256 * pass + 32 * g);
      if (kOne) {
        p.low = load<uint4>(at);
      } else {
        load_two(at, v_turn, p.low, p.high);
      }
      return p;
    }
    const std::uint32_t at = from + token * kDim + (kOne ? 8 * g : 128 * pass + 16 * g);
    uint2 low, high{};
    if (kOne) {
      low = load<uint2>(at);
    } else {
      load_two(at, v_turn, low, high);
    }
    if (v_of(block) == Half::kInt8) {
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
