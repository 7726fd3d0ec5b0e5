// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/cpu_attend.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "kernels/base/half.hpp"

// One body, compiled for several instruction sets and chosen once. The bodies are inlined into
// functions that carry the instruction set, so that none of it leaks into shared inline functions.
#if defined(__x86_64__)
#define LEHR_AVX2 __attribute__((target("avx2,fma")))
#define LEHR_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma")))
#endif
#define LEHR_BODY [[gnu::always_inline]] inline

namespace lehr::contents {
namespace {

using V8 = float __attribute__((vector_size(32)));
using V16 = float __attribute__((vector_size(64)));
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr std::size_t kWidenPart = 64;  ///< elements converted at once
constexpr std::uint32_t kRowBlock = 4;  ///< query rows that share the loads of a page

template <class V>
LEHR_BODY void load(V& v, const float* from) {
  std::memcpy(&v, from, sizeof(V));
}
template <class V>
LEHR_BODY void store(float* to, const V& v) {
  std::memcpy(to, &v, sizeof(V));
}

/// 2^x for x <= 0, to about 1e-7 of its value; 0 below 2^-126.
LEHR_BODY float exp2_of(float x) {
  const float clamped = x < -126.0F ? -126.0F : x;
  const float shifted = clamped + 12582912.0F;  // 1.5 * 2^23: the sum's low bits are the integer
  const float f = clamped - (shifted - 12582912.0F);
  float p = 1.5252733e-5F;
  p = p * f + 1.5403530e-4F;
  p = p * f + 1.3333558e-3F;
  p = p * f + 9.6181291e-3F;
  p = p * f + 5.5504109e-2F;
  p = p * f + 2.4022651e-1F;
  p = p * f + 6.9314718e-1F;
  p = p * f + 1.0F;
  const std::uint32_t n = std::bit_cast<std::uint32_t>(shifted) << 23;
  const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + n);
  return x < -126.0F ? 0.0F : result;
}

LEHR_BODY float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000U) << 16;
  const std::uint32_t rest = static_cast<std::uint32_t>(h & 0x7FFFU) << 13;
  const float scaled = std::bit_cast<float>(rest) * 0x1p112F;  // right for subnormals, too
  const std::uint32_t special = rest >= 0x0F800000U ? 0x7F800000U : 0U;  // infinities and NaN
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

LEHR_BODY void widen(Element from, const std::byte* in, float* out, std::size_t count) {
  if (from == Element::kF32) {
    std::memcpy(out, in, count * 4);
    return;
  }
  std::uint16_t half[kWidenPart];
  for (std::size_t at = 0; at < count; at += kWidenPart) {
    const std::size_t n = count - at < kWidenPart ? count - at : kWidenPart;
    std::memcpy(half, in + 2 * at, 2 * n);
    if (from == Element::kBf16) {
      for (std::size_t i = 0; i < n; ++i)
        out[at + i] = std::bit_cast<float>(static_cast<std::uint32_t>(half[i]) << 16);
    } else {
      for (std::size_t i = 0; i < n; ++i) out[at + i] = f16_to_float(half[i]);
    }
  }
}

constexpr std::uint32_t padded(std::uint32_t tokens) { return (tokens + 15) / 16 * 16; }

/// K transposed to [dim][padded tokens], V to [tokens][dim], both in float.
LEHR_BODY void load_page(const PageShape& shape, const PageRef& page, AttendScratch& scratch) {
  const std::uint32_t pad = padded(shape.tokens);
  const std::size_t count = std::size_t{page.tokens} * shape.dim;
  const PageShape stored{shape.tokens, shape.dim, page.wide ? Element::kF32 : shape.element};
  float* plain = scratch.values.data();
  widen(stored.element, page.data, plain, count);
  for (std::uint32_t t = 0; t < page.tokens; ++t) {
    for (std::uint32_t c = 0; c < shape.dim; ++c)
      scratch.keys[std::size_t{c} * pad + t] = plain[std::size_t{t} * shape.dim + c];
  }
  widen(stored.element, page.data + stored.half_bytes(), plain, count);
}

/// Logits of R rows with all tokens of the page.
template <std::uint32_t R>
LEHR_BODY void dots(const float* q, std::uint32_t dim, const float* keys, std::uint32_t pad,
                    float (&logit)[kRowBlock][kMostPageTokens]) {
  for (std::uint32_t t = 0; t < pad; t += 16) {
    V16 sum[R] = {};
    for (std::uint32_t c = 0; c < dim; ++c) {
      V16 k;
      load(k, keys + std::size_t{c} * pad + t);
      for (std::uint32_t r = 0; r < R; ++r) sum[r] += q[std::size_t{r} * dim + c] * k;
    }
    for (std::uint32_t r = 0; r < R; ++r) store(&logit[r][t], sum[r]);
  }
}

/// out[r] = out[r] * keep[r] + weights[r] . V
template <std::uint32_t R>
LEHR_BODY void blend(float* out, std::uint32_t dim, const float* values, std::uint32_t tokens,
                     const float (&weight)[kRowBlock][kMostPageTokens],
                     const float (&keep)[kRowBlock]) {
  for (std::uint32_t c = 0; c < dim; c += 8) {
    V8 sum[R];
    for (std::uint32_t r = 0; r < R; ++r) {
      load(sum[r], out + std::size_t{r} * dim + c);
      sum[r] *= keep[r];
    }
    for (std::uint32_t t = 0; t < tokens; ++t) {
      V8 v;
      load(v, values + std::size_t{t} * dim + c);
      for (std::uint32_t r = 0; r < R; ++r) sum[r] += weight[r][t] * v;
    }
    for (std::uint32_t r = 0; r < R; ++r) store(out + std::size_t{r} * dim + c, sum[r]);
  }
}

/// From dot products to weights relative to the page's own maximum; what a row does not see is 0.
LEHR_BODY SoftmaxPair soften(const GroupQuery& query, std::uint64_t position, const PageRef& page,
                             float (&logit)[kMostPageTokens]) {
  if (page.first > position) return {kNothing, 0.0F};
  const std::uint64_t last = position - page.first;
  const auto end =
      static_cast<std::uint32_t>(last + 1 < page.tokens ? last + 1 : std::uint64_t{page.tokens});
  std::uint32_t begin = 0;
  if (query.window != 0 && position + 1 > page.first + query.window) {
    const std::uint64_t hidden = position + 1 - page.first - query.window;
    if (hidden >= end) return {kNothing, 0.0F};
    begin = static_cast<std::uint32_t>(hidden);
  }
  const auto log2e = static_cast<float>(std::numbers::log2e);
  if (query.soft_cap > 0) {
    for (std::uint32_t t = begin; t < end; ++t) {
      logit[t] = query.soft_cap * std::tanh(logit[t] * query.scale / query.soft_cap) * log2e;
    }
  } else {
    const float factor = query.scale * log2e;
    for (std::uint32_t t = begin; t < end; ++t) logit[t] *= factor;
  }
  float m = kNothing;
  for (std::uint32_t t = begin; t < end; ++t) m = logit[t] > m ? logit[t] : m;
  float d = 0;
  for (std::uint32_t t = 0; t < begin; ++t) logit[t] = 0;
  for (std::uint32_t t = begin; t < end; ++t) logit[t] = exp2_of(logit[t] - m);
  for (std::uint32_t t = begin; t < end; ++t) d += logit[t];
  for (std::uint32_t t = end; t < page.tokens; ++t) logit[t] = 0;
  return {m, d};
}

template <std::uint32_t R>
LEHR_BODY void rows_on_page(const PageShape& shape, const GroupQuery& query, std::uint32_t first,
                            const PageRef& page, SoftmaxPair* pair_of_last,
                            AttendScratch& scratch) {
  float logit[kRowBlock][kMostPageTokens];
  float keep[kRowBlock];
  dots<R>(query.q + std::size_t{first} * shape.dim, shape.dim, scratch.keys.data(),
          padded(shape.tokens), logit);
  const std::uint32_t last_row = query.rows - query.ratio;  // rows of the last query token
  for (std::uint32_t r = 0; r < R; ++r) {
    const std::uint32_t row = first + r;
    SoftmaxPair& total = scratch.totals[row];
    const SoftmaxPair pair = soften(query, query.first + row / query.ratio, page, logit[r]);
    if (pair_of_last != nullptr && row >= last_row) pair_of_last[row - last_row] = pair;
    keep[r] = 1.0F;
    if (pair.d == 0.0F) {  // nothing of this page is seen
      for (std::uint32_t t = 0; t < page.tokens; ++t) logit[r][t] = 0;
    } else if (pair.m > total.m) {
      keep[r] = total.d == 0.0F ? 0.0F : exp2_of(total.m - pair.m);
      total = {pair.m, total.d * keep[r] + pair.d};
    } else {
      const float factor = exp2_of(pair.m - total.m);
      total.d += factor * pair.d;
      for (std::uint32_t t = 0; t < page.tokens; ++t) logit[r][t] *= factor;
    }
  }
  blend<R>(query.out + std::size_t{first} * shape.dim, shape.dim, scratch.values.data(),
           page.tokens, logit, keep);
}

LEHR_BODY void attend_body(const PageShape& shape, const GroupQuery& query,
                           std::span<const PageRef> pages, SoftmaxPair* pairs,
                           AttendScratch& scratch) {
  for (std::size_t i = 0; i < pages.size(); ++i) {
    load_page(shape, pages[i], scratch);
    SoftmaxPair* const pair = pairs == nullptr ? nullptr : pairs + i * query.ratio;
    std::uint32_t row = 0;
    if (pages[i].first > query.first) {  // rows before the page see nothing of it
      const std::uint64_t skipped = (pages[i].first - query.first) * query.ratio;
      const std::uint32_t last_row = query.rows - query.ratio;
      row = static_cast<std::uint32_t>(skipped < last_row ? skipped : std::uint64_t{last_row});
    }
    for (; row + 4 <= query.rows; row += 4)
      rows_on_page<4>(shape, query, row, pages[i], pair, scratch);
    const std::uint32_t rest = query.rows - row;
    if (rest == 3) rows_on_page<3>(shape, query, row, pages[i], pair, scratch);
    if (rest == 2) rows_on_page<2>(shape, query, row, pages[i], pair, scratch);
    if (rest == 1) rows_on_page<1>(shape, query, row, pages[i], pair, scratch);
  }
  for (std::uint32_t row = 0; row < query.rows; ++row) {
    const float d = scratch.totals[row].d;
    const float inverse = d == 0.0F ? 0.0F : 1.0F / d;
    float* out = query.out + std::size_t{row} * shape.dim;
    for (std::uint32_t c = 0; c < shape.dim; ++c) out[c] *= inverse;
  }
}

LEHR_BODY float score_body(std::uint32_t dim, const float* q, std::uint32_t rows,
                           const float* box) {
  float best = kNothing;
  for (std::uint32_t r = 0; r < rows; ++r) {
    V8 sum = {};
    for (std::uint32_t c = 0; c < dim; c += 8) {
      V8 x;
      V8 low;
      V8 high;
      load(x, q + std::size_t{r} * dim + c);
      load(low, box + c);
      load(high, box + dim + c);
      low *= x;
      high *= x;
      sum += low > high ? low : high;
    }
    float score = 0;
    for (int i = 0; i < 8; ++i) score += sum[i];
    best = score > best ? score : best;
  }
  return best;
}

using AttendFn = void (*)(const PageShape&, const GroupQuery&, std::span<const PageRef>,
                          SoftmaxPair*, AttendScratch&);
using ScoreFn = float (*)(std::uint32_t, const float*, std::uint32_t, const float*);
using WidenFn = void (*)(Element, const std::byte*, float*, std::size_t);

void attend_plain(const PageShape& s, const GroupQuery& q, std::span<const PageRef> p,
                  SoftmaxPair* pairs, AttendScratch& scratch) {
  attend_body(s, q, p, pairs, scratch);
}
float score_plain(std::uint32_t dim, const float* q, std::uint32_t rows, const float* box) {
  return score_body(dim, q, rows, box);
}
void widen_plain(Element from, const std::byte* in, float* out, std::size_t n) {
  widen(from, in, out, n);
}

#if defined(__x86_64__)
LEHR_AVX2 void attend_avx2(const PageShape& s, const GroupQuery& q, std::span<const PageRef> p,
                           SoftmaxPair* pairs, AttendScratch& scratch) {
  attend_body(s, q, p, pairs, scratch);
}
LEHR_AVX512 void attend_avx512(const PageShape& s, const GroupQuery& q, std::span<const PageRef> p,
                               SoftmaxPair* pairs, AttendScratch& scratch) {
  attend_body(s, q, p, pairs, scratch);
}
LEHR_AVX2 float score_avx2(std::uint32_t dim, const float* q, std::uint32_t rows,
                           const float* box) {
  return score_body(dim, q, rows, box);
}
LEHR_AVX2 void widen_avx2(Element from, const std::byte* in, float* out, std::size_t n) {
  widen(from, in, out, n);
}
#endif

struct Kernels {
  AttendFn attend = attend_plain;
  ScoreFn score = score_plain;
  WidenFn widen = widen_plain;
};

const Kernels& kernels() {
  static const Kernels chosen = [] {
    Kernels k;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      k = {attend_avx2, score_avx2, widen_avx2};
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        k.attend = attend_avx512;
      }
    }
#endif
    return k;
  }();
  return chosen;
}

}  // namespace

void to_floats(Element from, const std::byte* in, float* out, std::size_t count) {
  kernels().widen(from, in, out, count);
}

void from_floats(Element to, const float* in, std::byte* out, std::size_t count) {
  if (to == Element::kF32) {
    std::memcpy(out, in, count * 4);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t h = to == Element::kBf16 ? to_bf16(in[i]) : to_f16(in[i]);
    std::memcpy(out + 2 * i, &h, 2);
  }
}

void attend_group(const PageShape& shape, const GroupQuery& query, std::span<const PageRef> pages,
                  SoftmaxPair* pairs, SoftmaxPair* totals, AttendScratch& scratch) {
  scratch.keys.resize(std::size_t{shape.dim} * padded(shape.tokens));
  scratch.values.resize(std::size_t{shape.tokens} * shape.dim);
  scratch.totals.assign(query.rows, {kNothing, 0.0F});
  std::fill_n(query.out, std::size_t{query.rows} * shape.dim, 0.0F);
  if (query.rows == 0) return;
  kernels().attend(shape, query, pages, pairs, scratch);
  if (totals != nullptr) std::copy_n(scratch.totals.end() - query.ratio, query.ratio, totals);
}

void box_of(const PageShape& shape, const std::byte* page, float* box, AttendScratch& scratch) {
  scratch.values.resize(std::size_t{shape.tokens} * shape.dim);
  const float* k = scratch.values.data();
  to_floats(shape.element, page, scratch.values.data(), std::size_t{shape.tokens} * shape.dim);
  for (std::uint32_t c = 0; c < shape.dim; ++c) {
    float low = k[c];
    float high = k[c];
    bool whole = true;
    for (std::uint32_t t = 0; t < shape.tokens; ++t) {
      const float x = k[std::size_t{t} * shape.dim + c];
      low = std::min(low, x);
      high = std::max(high, x);
      whole &= !std::isnan(x);
    }
    if (!whole) {  // a page with a NaN is always chosen, never lost
      low = kNothing;
      high = std::numeric_limits<float>::infinity();
    }
    box[c] = low;
    box[shape.dim + c] = high;
  }
}

float box_score(std::uint32_t dim, const float* q, std::uint32_t rows, const float* box) {
  return kernels().score(dim, q, rows, box);
}

}  // namespace lehr::contents
