// SPDX-License-Identifier: Apache-2.0
#include "predictors/networks.hpp"

#include <algorithm>
#include <string>

#include "kernels/base/simd.hpp"
#include "predictors/lanes.hpp"

namespace lehr::predictors {

namespace {

constexpr std::uint32_t kN = Run::kLength;

/// Row r of `out` = bias[r] + sum over the rows of `in` of weight[r][j] * in[j], for a whole run.
LEHR_VECTOR_CLONES void weigh(const float* weight, const float* bias, const float* in,
                              std::uint32_t inputs, std::uint32_t rows, float* out) {
  constexpr std::size_t kFour = 4;  // rows that share what is loaded
  constexpr std::size_t kThree = kTrainedSteps;
  std::uint32_t r = 0;
  for (; r + kFour <= rows; r += kFour) {
    const float* w = weight + std::size_t{r} * inputs;
    float* to = out + std::size_t{r} * kN;
    for (std::uint32_t half = 0; half < kN; half += kN / 2)
      Tile<kFour, 2>{w, inputs, bias + r, in + half, to + half, kN}.run(inputs);
  }
  if (r + kThree <= rows) {
    const float* w = weight + std::size_t{r} * inputs;
    float* to = out + std::size_t{r} * kN;
    for (std::uint32_t half = 0; half < kN; half += kN / 2)
      Tile<kThree, 2>{w, inputs, bias + r, in + half, to + half, kN}.run(inputs);
    r += kThree;
  }
  for (; r < rows; ++r) {
    const float* w = weight + std::size_t{r} * inputs;
    Tile<1, 4>{w, inputs, bias + r, in, out + std::size_t{r} * kN, kN}.run(inputs);
  }
}
static_assert(kN == 4 * kLaneCount);

LEHR_VECTOR_CLONES void rectify(float* x, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0F);
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
  weigh(weight[0].data(), bias.data(), f[0].data(), kInputs, steps, x[0].data());
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
  weigh(w1[0].data(), b1.data(), f[0].data(), kInputs, kHidden, hidden[0].data());
  rectify(hidden[0].data(), kHidden * kN);
  weigh(w2[0].data(), b2.data(), hidden[0].data(), kHidden, steps, x[0].data());
}

}  // namespace lehr::predictors
