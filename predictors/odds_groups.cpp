// SPDX-License-Identifier: Apache-2.0
#include "predictors/odds_groups.hpp"

#include <algorithm>
#include <cmath>

#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr double kForget = 0.9;
constexpr double kPrior = 5;          // pages that the odds count for
constexpr double kChance = 10;        // reads by which a group may be off at random
constexpr double kLeastShare = 0.02;  // of all reads, that a group must be off by

std::uint32_t group_of(float x, std::uint32_t groups) {
  const auto last = static_cast<float>(groups - 1);
  return static_cast<std::uint32_t>(std::min(std::max(x + kMostLogit, 0.0F), last));
}

double log_odds(double p) {
  const double q = std::clamp(p, 1e-6, 1 - 1e-6);
  return std::log(q / (1 - q));
}

}  // namespace

void OddsGroups::add(const float* x, const float* said, const std::uint8_t* read, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) {
    Group& g = groups_[group_of(x[i], kGroups)];
    g.pages += 1;
    g.said += static_cast<double>(said[i]);
    g.read += read[i];
  }
}

void OddsGroups::end_step() {
  for (std::uint32_t i = 0; i < kGroups; ++i) {
    Group& g = groups_[i];
    const double said = g.pages > 0 ? g.said / g.pages : 0;
    const double came = (g.read + kPrior * said) / (g.pages + kPrior);
    shift_[i] = g.pages > 0 ? static_cast<float>(log_odds(came) - log_odds(said)) : 0.0F;
    for (double* sum : {&g.pages, &g.said, &g.read}) *sum *= kForget;
  }
}

bool OddsGroups::misled(double times) const {
  double reads = 0;
  for (const Group& g : groups_) reads += g.read;
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) {
    return g.said > times * g.read + kChance && g.said - g.read > kLeastShare * reads;
  });
}

void OddsGroups::apply(const float* x, std::uint32_t n, float* odds) const {
  for (std::uint32_t i = 0; i < n; ++i) odds[i] = sigmoid(x[i] + shift_[group_of(x[i], kGroups)]);
}

}  // namespace lehr::predictors
