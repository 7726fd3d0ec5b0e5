// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "runtime/contents/cpu_attend.hpp"

namespace lehr::serving {

/// Attention of one query row over a part of its tokens: the result of the part alone, and what is
/// left of its softmax.
struct AttendedPart {
  const float* out = nullptr;  ///< [dim]
  contents::SoftmaxPair total{-std::numeric_limits<float>::infinity(), 0};
};

/// The row's attention over all parts' tokens, which no two parts share, in the order of the list:
/// exact but for rounding, for softmax over a union is the parts' results weighted by d * 2^m. An
/// empty part counts for nothing; nothing at all gives zeros. `out` may be one of the parts' own.
inline contents::SoftmaxPair merge_parts(std::span<const AttendedPart> parts, std::size_t dim,
                                         float* out) {
  float m = -std::numeric_limits<float>::infinity();
  for (const AttendedPart& part : parts) m = std::fmax(m, part.total.m);
  double d = 0;
  for (const AttendedPart& part : parts) {
    if (part.total.d > 0) d += std::exp2(double{part.total.m} - m) * part.total.d;
  }
  for (std::size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (const AttendedPart& part : parts) {
      if (part.total.d > 0)
        sum += std::exp2(double{part.total.m} - m) * part.total.d / d * double{part.out[c]};
    }
    out[c] = static_cast<float>(sum);
  }
  return {m, static_cast<float>(d)};
}

}  // namespace lehr::serving
