// SPDX-License-Identifier: Apache-2.0
#include "predictors/networks.hpp"

#include <algorithm>
#include <string>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"

namespace lehr::predictors {

namespace {

constexpr std::uint32_t kN = Run::kLength;

/// out = bias + sum over inputs of weight[j] * in[j], for a whole run.
LEHR_VECTOR_CLONES void weigh(const float* weight, float bias, const float* in,
                              std::uint32_t inputs, float* out) {
  float acc[kN];
  for (std::uint32_t i = 0; i < kN; ++i) acc[i] = bias;
  for (std::uint32_t j = 0; j < inputs; ++j) {
    const float w = weight[j];
    const float* row = in + std::size_t{j} * kN;
    for (std::uint32_t i = 0; i < kN; ++i) acc[i] += w * row[i];
  }
  for (std::uint32_t i = 0; i < kN; ++i) out[i] = acc[i];
}

template <std::size_t Rows, std::size_t Columns>
void fill(std::span<const float> from, std::array<std::array<float, Columns>, Rows>& to) {
  for (std::size_t r = 0; r < Rows; ++r)
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(r * Columns), Columns, to[r].begin());
}

}  // namespace

Result<LogisticWeights> LogisticWeights::from(std::span<const Tensor> weights) {
  LogisticWeights out;
  LEHR_ASSIGN(const auto w, find_weights(weights, "logistic.weight", {kTrainedSteps, kInputs}));
  LEHR_ASSIGN(const auto b, find_weights(weights, "logistic.bias", {kTrainedSteps}));
  fill(w, out.weight);
  std::copy(b.begin(), b.end(), out.bias.begin());
  return out;
}

void LogisticWeights::logits(const Features& f, Logits& x, std::uint32_t steps) const {
  for (std::uint32_t k = 0; k < steps; ++k)
    weigh(weight[k].data(), bias[k], f[0].data(), kInputs, x[k].data());
}

Result<NetWeights> NetWeights::from(std::span<const Tensor> weights) {
  NetWeights out;
  LEHR_ASSIGN(const auto w1, find_weights(weights, "net.w1", {kHidden, kInputs}));
  LEHR_ASSIGN(const auto b1, find_weights(weights, "net.b1", {kHidden}));
  LEHR_ASSIGN(const auto w2, find_weights(weights, "net.w2", {kTrainedSteps, kHidden}));
  LEHR_ASSIGN(const auto b2, find_weights(weights, "net.b2", {kTrainedSteps}));
  fill(w1, out.w1);
  fill(w2, out.w2);
  std::copy(b1.begin(), b1.end(), out.b1.begin());
  std::copy(b2.begin(), b2.end(), out.b2.begin());
  return out;
}

void NetWeights::logits(const Features& f, Logits& x, std::uint32_t steps) const {
  std::array<std::array<float, kN>, kHidden> hidden;
  for (std::uint32_t h = 0; h < kHidden; ++h) {
    weigh(w1[h].data(), b1[h], f[0].data(), kInputs, hidden[h].data());
    for (float& v : hidden[h]) v = std::max(v, 0.0F);
  }
  for (std::uint32_t k = 0; k < steps; ++k)
    weigh(w2[k].data(), b2[k], hidden[0].data(), kHidden, x[k].data());
}

}  // namespace lehr::predictors
