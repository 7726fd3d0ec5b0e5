// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/base/exchange.hpp"

namespace lehr::predictors {

/// Makes raw logits into honest odds, online: for each number of steps ahead a temperature and a
/// threshold (p = sigmoid(slope * x + offset)), fitted to what came about by one damped Newton step
/// on the decayed log loss after each step. The slope stays positive: order is never turned round.
class OddsScaler {
 public:
  struct Fit {
    double slope = 1;
    double offset = 0;
  };

  /// What `n` pages, whose raw logits were `x` when `ahead` steps were to go, did: 1 was read.
  void learn(std::uint32_t ahead, const float* x, const std::uint8_t* read, std::uint32_t n);
  /// A step's evidence becomes part of the fits.
  void end_step();
  /// Odds of being read `ahead` steps on.
  void apply(std::uint32_t ahead, const float* x, std::uint32_t n, float* odds) const;

  const Fit& fit(std::uint32_t ahead) const { return horizon_[ahead - 1].fit; }

 private:
  /// Gradient and Hessian of the log loss, decayed.
  struct Horizon {
    Fit fit;
    double g0 = 0, g1 = 0;
    double h00 = 0, h01 = 0, h11 = 0;
    double seen = 0;
  };
  std::array<Horizon, kMaxHorizon> horizon_;
};

}  // namespace lehr::predictors
