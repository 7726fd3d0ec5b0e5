// SPDX-License-Identifier: Apache-2.0
#include "predictors/logit.hpp"

#include "kernels/base/simd.hpp"

namespace lehr::predictors {

LEHR_VECTOR_CLONES void logits_of(const float* odds, std::uint32_t n, float* x) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] = logit(odds[i]);
}

}  // namespace lehr::predictors
