// SPDX-License-Identifier: Apache-2.0
#include "predictors/models/within_step.hpp"

#include "kernels/base/simd.hpp"

namespace lehr::predictors::within {

LEHR_VECTOR_CLONES void add_surprise(const std::uint8_t* read, const float* expected,
                                     const std::uint32_t* age, std::uint32_t n, float* next) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float beyond = static_cast<float>(read[i]) - expected[i];
    next[i] += age[i] > 0 ? beyond : 0.0F;
  }
}

LEHR_VECTOR_CLONES void surprise_bins(const float* next, float gain, float fade, std::uint32_t n,
                                      float* sum, std::uint8_t* bin) {
  for (std::uint32_t i = 0; i < n; ++i) {
    sum[i] = fade * sum[i] + gain * next[i];
    std::uint32_t passed = 0;
    for (const float edge : kEdges) passed += sum[i] >= edge ? 1U : 0U;
    bin[i] = static_cast<std::uint8_t>(passed);
  }
}

LEHR_VECTOR_CLONES void odds_bins(const float* x, std::uint32_t n, std::uint32_t bins,
                                  std::uint8_t* bin) {
  const auto last = static_cast<float>(bins - 1);
  for (std::uint32_t i = 0; i < n; ++i) {
    const float at = std::min(std::max(x[i] * 1.2F + 8.0F, 0.0F), last);
    bin[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(at));
  }
}

}  // namespace lehr::predictors::within
