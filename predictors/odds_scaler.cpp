// SPDX-License-Identifier: Apache-2.0
#include "predictors/odds_scaler.hpp"

#include <algorithm>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr double kForget = 0.97;  // of the curvature, a step
constexpr double kRidge = 20;     // observations that the fit so far counts for
constexpr double kLeastSlope =
    0.02;  // what is worse than nothing becomes nothing, not its opposite
constexpr double kMostSlope = 8;
constexpr double kMostOffset = 12;

LEHR_VECTOR_CLONES void scale(float slope, float offset, const float* x, std::uint32_t n,
                              float* odds) {
  for (std::uint32_t i = 0; i < n; ++i) odds[i] = sigmoid(slope * x[i] + offset);
}

/// Gradient and Hessian of the log loss, in sums side by side.
constexpr std::uint32_t kSums = 16;
using Sums = std::array<std::array<float, kSums>, 5>;

LEHR_VECTOR_CLONES void add_evidence(float slope, float offset, const float* x,
                                     const std::uint8_t* read, std::uint32_t n, Sums& sums) {
  for (std::uint32_t i = 0; i < n; i += kSums) {
    const std::uint32_t some = std::min(kSums, n - i);
    std::array<float, kSums> at{};
    std::array<float, kSums> came{};
    std::array<float, kSums> counts{};
    for (std::uint32_t l = 0; l < some; ++l) {
      at[l] = x[i + l];
      came[l] = static_cast<float>(read[i + l]);
      counts[l] = 1;
    }
    for (std::uint32_t l = 0; l < kSums; ++l) {
      const float p = sigmoid(slope * at[l] + offset);
      const float error = counts[l] * (came[l] - p);
      const float w = counts[l] * p * (1 - p);
      sums[0][l] += error;
      sums[1][l] += error * at[l];
      sums[2][l] += w;
      sums[3][l] += w * at[l];
      sums[4][l] += w * at[l] * at[l];
    }
  }
}

}  // namespace

void OddsScaler::learn(std::uint32_t ahead, const float* x, const std::uint8_t* read,
                       std::uint32_t n) {
  Horizon& h = horizon_[ahead - 1];
  Sums sums{};
  add_evidence(static_cast<float>(h.fit.slope), static_cast<float>(h.fit.offset), x, read, n, sums);
  for (std::uint32_t l = 0; l < kSums; ++l) {
    h.g0 += static_cast<double>(sums[0][l]);
    h.g1 += static_cast<double>(sums[1][l]);
    h.h00 += static_cast<double>(sums[2][l]);
    h.h01 += static_cast<double>(sums[3][l]);
    h.h11 += static_cast<double>(sums[4][l]);
  }
  h.seen += n;
}

void OddsScaler::end_step() {
  for (Horizon& h : horizon_) {
    if (h.seen > 0) {
      // The gradient is this step's, the curvature that of many: a step of 1 / (1 - kForget) mean
      // length each time, which follows a drift within some thirty steps.
      const double a = h.h00 + kRidge * 0.05;
      const double c = h.h11 + kRidge * 0.5;
      const double det = a * c - h.h01 * h.h01;
      if (det > 1e-9) {
        h.fit.offset += std::clamp((c * h.g0 - h.h01 * h.g1) / det, -1.0, 1.0);
        h.fit.slope += std::clamp((a * h.g1 - h.h01 * h.g0) / det, -0.5, 0.5);
        h.fit.offset = std::clamp(h.fit.offset, -kMostOffset, kMostOffset);
        h.fit.slope = std::clamp(h.fit.slope, kLeastSlope, kMostSlope);
      }
    }
    h.g0 = h.g1 = h.seen = 0;
    h.h00 *= kForget;
    h.h01 *= kForget;
    h.h11 *= kForget;
  }
}

void OddsScaler::apply(std::uint32_t ahead, const float* x, std::uint32_t n, float* odds) const {
  const Fit& f = horizon_[ahead - 1].fit;
  scale(static_cast<float>(f.slope), static_cast<float>(f.offset), x, n, odds);
}

}  // namespace lehr::predictors
