// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace lehr::predictors {

/// Sixteen numbers side by side; a processor without such wide registers takes several.
using Lanes = float __attribute__((vector_size(64)));
inline constexpr std::uint32_t kLaneCount = 16;

/// For out[r][c] = start[r] + sum over k of m[r][k] * in[k][c], R rows and C times sixteen columns
/// at once, so that the sums stay in registers and what is loaded is used R or C times. The order
/// of the additions is that of k, whatever the tile. To be inlined where LEHR_VECTOR_CLONES says
/// what the processor can do.
template <std::size_t R, std::size_t C>
struct Tile {
  const float* m;  ///< [R, columns], rows `m_stride` apart
  std::size_t m_stride;
  const float* start;  ///< [R]
  const float* in;     ///< [columns, 16 C], rows `stride` apart
  float* out;          ///< [R, 16 C], likewise
  std::size_t stride;

  __attribute__((always_inline)) inline void run(std::uint32_t columns) const {
    run(columns, std::make_index_sequence<R * C>{}, std::make_index_sequence<C>{});
  }

 private:
  template <std::size_t... At, std::size_t... Column>
  __attribute__((always_inline)) inline void run(std::uint32_t columns,
                                                 std::index_sequence<At...> /*sums*/,
                                                 std::index_sequence<Column...> /*columns*/) const {
    Lanes sum[R * C] = {(Lanes{} + start[At / C])...};
    for (std::uint32_t k = 0; k < columns; ++k) {
      Lanes x[C];
      (std::memcpy(&x[Column], in + k * stride + Column * kLaneCount, sizeof(Lanes)), ...);
      ((sum[At] += m[At / C * m_stride + k] * x[At % C]), ...);
    }
    (std::memcpy(out + At / C * stride + At % C * kLaneCount, &sum[At], sizeof(Lanes)), ...);
  }
};

}  // namespace lehr::predictors
