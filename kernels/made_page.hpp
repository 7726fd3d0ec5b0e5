// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lehr::kernels {

/// Contents of a page that can be made again anywhere, so that a copy in any tier can be checked:
/// two finite fp16 numbers of 1/16 to 1 with a sign, as one word. `index` counts pairs of elements
/// from the page's start (K [tokens][dim], then V), so a token's words do not depend on how full
/// the page is.
constexpr std::uint32_t made_word(std::uint32_t page, std::uint32_t index) {
  std::uint32_t h = page * 0x9E3779B1U ^ index * 0x85EBCA77U;
  h = (h ^ h >> 15) * 0x2C1B3C6DU;
  h = (h ^ h >> 12) * 0x297A2D39U;
  h ^= h >> 15;
  const auto half = [](std::uint32_t bits) {
    const std::uint32_t exponent = 11U + (bits >> 10 & 3U);
    return (bits & 0x8000U) | exponent << 10 | (bits & 0x3FFU);
  };
  return half(h & 0xFFFFU) | half(h >> 16) << 16;
}

/// K, V and queries of a recorded sequence, as pairs of fp16 in one word; with `k` null contents
/// are made instead. A page is then known by ((sequence * layers + layer) * kv_heads + KV head) *
/// pages + position, and all sequences are the recorded one.
struct PageSource {
  const std::uint32_t* k = nullptr;  ///< [layers][kv_heads][tokens][pairs]
  const std::uint32_t* v = nullptr;
  const std::uint32_t* q = nullptr;  ///< [tokens - prompt][layers][q_heads][pairs]
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t pairs = 0;  ///< head_dim / 2
  std::uint32_t page_tokens = 0;
  std::uint32_t pages = 0;   ///< a KV group has at most
  std::uint32_t tokens = 0;  ///< recorded
  std::uint32_t prompt = 0;  ///< of them before the first step

  constexpr std::uint32_t group(std::uint32_t page) const {
    return page / pages % (layers * kv_heads);
  }

  /// Word `index` of a page.
  constexpr std::uint32_t word(std::uint32_t page, std::uint32_t index) const {
    if (k == nullptr) return made_word(page, index);
    const std::uint32_t half = page_tokens * pairs;
    const std::uint32_t i = index % half;
    const std::uint64_t token = page % pages * page_tokens + i / pairs;
    return (index < half ? k
                         : v)[(group(page) * std::uint64_t{tokens} + token) * pairs + i % pairs];
  }

  /// Word `i` of the queries that share the tail page's KV head ([q_heads / kv_heads][pairs]), in
  /// the step that writes its token `token`. `shape_pairs` as `pairs`, for made contents too.
  constexpr std::uint32_t query(std::uint32_t page, std::uint32_t token, std::uint32_t i,
                                std::uint32_t ratio, std::uint32_t shape_pairs,
                                std::uint32_t shape_tokens) const {
    // Made ones: words past the page's own, so that they are no key of it.
    if (k == nullptr)
      return made_word(page, 2 * shape_tokens * shape_pairs + token * ratio * shape_pairs + i);
    const std::uint32_t at = group(page);
    const std::uint64_t step = page % pages * page_tokens + token - prompt;
    const std::uint64_t head = at % kv_heads * (q_heads / kv_heads);
    return q[((step * layers + at / kv_heads) * q_heads + head) * pairs + i];
  }
};

}  // namespace lehr::kernels
