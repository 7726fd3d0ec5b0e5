// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lehr::contents {

/// How an element of a page, of Q or of the output is stored.
enum class Element : std::uint8_t { kF32, kF16, kBf16 };

constexpr std::uint32_t bytes_of(Element e) { return e == Element::kF32 ? 4U : 2U; }

/// `count` elements as floats, and back (nearest, ties to even).
void to_floats(Element from, const std::byte* in, float* out, std::size_t count);
void from_floats(Element to, const float* in, std::byte* out, std::size_t count);

/// A page is K [tokens][dim], then V [tokens][dim].
struct PageShape {
  std::uint32_t tokens = 0;  ///< 1 to kMostPageTokens
  std::uint32_t dim = 0;     ///< a multiple of 8, up to kMostDim
  Element element = Element::kF32;

  constexpr std::size_t half_bytes() const { return std::size_t{tokens} * dim * bytes_of(element); }
  constexpr std::size_t bytes() const { return 2 * half_bytes(); }
  constexpr std::size_t elements() const { return 2 * std::size_t{tokens} * dim; }
};
inline constexpr std::uint32_t kMostPageTokens = 256;
inline constexpr std::uint32_t kMostDim = 512;

struct PageRef {
  const std::byte* data = nullptr;
  std::uint64_t first = 0;   ///< position of its first token
  std::uint32_t tokens = 0;  ///< that it holds
  bool wide = false;         ///< `data` is floats, whatever the shape's element
};

/// Softmax over a set of tokens: weights sum to d * 2^m, logits in log2 units. Empty: (-inf, 0).
struct SoftmaxPair {
  float m;
  float d;
};

/// The queries of one sequence that share a KV head. Row = query token * ratio + head in the group.
struct GroupQuery {
  const float* q = nullptr;  ///< [rows][dim]
  float* out = nullptr;      ///< [rows][dim]
  std::uint32_t rows = 0;
  std::uint32_t ratio = 1;
  std::uint64_t first = 0;   ///< position of the first query token; each sees up to its own
  float scale = 0;           ///< of q.k
  float soft_cap = 0;        ///< cap * tanh(s / cap); 0: none
  std::uint32_t window = 0;  ///< a query sees its latest `window` tokens; 0: all
};

/// Working memory; kept between calls so that nothing is allocated. One a thread.
struct AttendScratch {
  std::vector<float> keys;  ///< transposed
  std::vector<float> values;
  std::vector<SoftmaxPair> totals;
};

/// Attention in float32, pages in the order of the list, so that the result does not depend on
/// where they lie. `pairs` (or null) gets [page][ratio] of the last query token, `totals` (or null)
/// [ratio]. A query that sees nothing gets zeros. Vectorised for what the processor offers.
void attend_group(const PageShape& shape, const GroupQuery& query, std::span<const PageRef> pages,
                  SoftmaxPair* pairs, SoftmaxPair* totals, AttendScratch& scratch);

/// Least and greatest K of each channel of a full page: [2][dim].
void box_of(const PageShape& shape, const std::byte* page, float* box, AttendScratch& scratch);

/// Largest q.k that a key inside the box could have, the maximum over the rows.
float box_score(std::uint32_t dim, const float* q, std::uint32_t rows, const float* box);

}  // namespace lehr::contents
