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

}  // namespace

void OddsScaler::learn(std::uint32_t ahead, const float* x, const std::uint8_t* read,
                       std::uint32_t n) {
  Horizon& h = horizon_[ahead - 1];
  const auto slope = static_cast<float>(h.fit.slope);
  const auto offset = static_cast<float>(h.fit.offset);
  float g0 = 0;
  float g1 = 0;
  float h00 = 0;
  float h01 = 0;
  float h11 = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const float p = sigmoid(slope * x[i] + offset);
    const float error = static_cast<float>(read[i]) - p;
    const float w = p * (1 - p);
    g0 += error;
    g1 += error * x[i];
    h00 += w;
    h01 += w * x[i];
    h11 += w * x[i] * x[i];
  }
  h.g0 += static_cast<double>(g0);
  h.g1 += static_cast<double>(g1);
  h.h00 += static_cast<double>(h00);
  h.h01 += static_cast<double>(h01);
  h.h11 += static_cast<double>(h11);
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
