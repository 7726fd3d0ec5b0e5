// SPDX-License-Identifier: Apache-2.0
// The recurrent network of networks.hpp, sixteen groups side by side.
#include <algorithm>
#include <string>

#include "kernels/base/simd.hpp"
#include "predictors/lanes.hpp"
#include "predictors/logit.hpp"
#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

using W = GruWeights;
constexpr std::uint32_t kL = GruBatch::kLanes;
constexpr std::uint32_t kTile = 8;  // outputs at a time
static_assert(kL == kLaneCount);

/// out[j][lane] = start[j] + sum over k of m[j][k] * in[k][lane].
LEHR_VECTOR_CLONES void multiply(const float* m, const float* start, const float* in,
                                 std::uint32_t rows, std::uint32_t columns, float* out) {
  std::uint32_t j = 0;
  for (; j + kTile <= rows; j += kTile) {
    const float* row = m + std::size_t{j} * columns;
    Tile<kTile, 1>{row, columns, start + j, in, out + std::size_t{j} * kL, kL}.run(columns);
  }
  for (; j < rows; ++j) {
    const float* row = m + std::size_t{j} * columns;
    Tile<1, 1>{row, columns, start + j, in, out + std::size_t{j} * kL, kL}.run(columns);
  }
}

/// h' = (1 - z) n + z h with z, r = sigmoid(.), n = tanh(wn + r * un). Lanes that have no such
/// block keep h.
LEHR_VECTOR_CLONES void step(const float* w, const float* u, const float* before,
                             const float* alive, float* after) {
  for (std::uint32_t j = 0; j < W::kHidden; ++j) {
    for (std::uint32_t l = 0; l < kL; ++l) {
      const std::size_t z_at = std::size_t{j} * kL + l;
      const std::size_t r_at = z_at + std::size_t{W::kHidden} * kL;
      const std::size_t n_at = r_at + std::size_t{W::kHidden} * kL;
      const float z = sigmoid(w[z_at] + u[z_at]);
      const float r = sigmoid(w[r_at] + u[r_at]);
      const float n = 2.0F * sigmoid(2.0F * (w[n_at] + r * u[n_at])) - 1.0F;
      const float next = (1.0F - z) * n + z * before[z_at];
      after[z_at] = alive[l] * next + (1.0F - alive[l]) * before[z_at];
    }
  }
}

}  // namespace

GruWeights::GruWeights() : v(std::size_t{kOutputs} * 2 * kHidden), c(kOutputs) {
  for (Direction& d : direction) {
    d.w.resize(std::size_t{kGates} * kInputs);
    d.u.resize(std::size_t{kGates} * kHidden);
    d.b.resize(kGates);
  }
}

Result<GruWeights> GruWeights::from(std::span<const Tensor> weights) {
  GruWeights out;
  const auto take = [&](std::vector<float>& to, const std::string& name,
                        std::initializer_list<std::uint32_t> shape) -> Status {
    LEHR_ASSIGN(const auto from, find_weights(weights, name, shape));
    to.assign(from.begin(), from.end());
    return {};
  };
  for (std::size_t d = 0; d < 2; ++d) {
    const std::string name = d == 0 ? "gru.f." : "gru.b.";
    LEHR_TRY(take(out.direction[d].w, name + "w", {kGates, kInputs}));
    LEHR_TRY(take(out.direction[d].u, name + "u", {kGates, kHidden}));
    LEHR_TRY(take(out.direction[d].b, name + "b", {kGates}));
  }
  LEHR_TRY(take(out.v, "gru.v", {kOutputs, 2 * kHidden}));
  LEHR_TRY(take(out.c, "gru.c", {kOutputs}));
  return out;
}

void GruBatch::shape(std::uint32_t blocks) {
  blocks_ = blocks;
  length_.fill(0);
  inputs_.assign(std::size_t{blocks} * W::kInputs * kL, 0);
  states_.resize(std::size_t{blocks} * 2 * W::kHidden * kL);
  outputs_.resize(std::size_t{blocks} * W::kOutputs * kL);
  gates_.resize(std::size_t{2} * W::kGates * kL);
}

void GruBatch::run(const GruWeights& weights, std::uint32_t steps) {
  static const std::vector<float> zero(std::size_t{W::kHidden} * kL, 0.0F);
  static const std::vector<float> no_bias(W::kGates, 0.0F);
  float* from_input = gates_.data();
  float* from_state = gates_.data() + std::size_t{W::kGates} * kL;
  for (std::uint32_t d = 0; d < 2; ++d) {
    const GruWeights::Direction& dir = weights.direction[d];
    const float* before = zero.data();
    for (std::uint32_t n = 0; n < blocks_; ++n) {
      const std::uint32_t block = d == 0 ? n : blocks_ - 1 - n;
      std::array<float, kL> alive{};
      for (std::uint32_t l = 0; l < kL; ++l) alive[l] = block < length_[l] ? 1.0F : 0.0F;
      multiply(dir.w.data(), dir.b.data(), input(block, 0), W::kGates, W::kInputs, from_input);
      multiply(dir.u.data(), no_bias.data(), before, W::kGates, W::kHidden, from_state);
      float* after = &states_[(std::size_t{block} * 2 + d) * W::kHidden * kL];
      step(from_input, from_state, before, alive.data(), after);
      before = after;
    }
  }
  for (std::uint32_t block = 0; block < blocks_; ++block) {
    multiply(weights.v.data(), weights.c.data(), &states_[std::size_t{block} * 2 * W::kHidden * kL],
             steps * W::kTerms, 2 * W::kHidden, &outputs_[std::size_t{block} * W::kOutputs * kL]);
  }
}

namespace {

/// Sum and largest of a row, sixteen columns side by side as far as it goes.
LEHR_VECTOR_CLONES void summarise(const float* row, std::uint32_t n, float& sum, float& most) {
  Lanes sums{};
  Lanes largest = Lanes{} + row[0];
  std::uint32_t i = 0;
  for (; i + kL <= n; i += kL) {
    Lanes x;
    std::memcpy(&x, row + i, sizeof x);
    sums += x;
    largest = x > largest ? x : largest;
  }
  sum = 0;
  most = row[0];
  for (; i < n; ++i) {
    sum += row[i];
    most = std::max(most, row[i]);
  }
  for (std::uint32_t l = 0; l < kL; ++l) {
    sum += sums[l];
    most = std::max(most, largest[l]);
  }
}

/// Rows of `steps` steps ahead over the features of a run, with weights of its block's own.
LEHR_VECTOR_CLONES void weigh(const float* terms, const Features& f, std::uint32_t steps,
                              Logits& x) {
  for (std::uint32_t k = 0; k < steps; ++k) {
    const float* term = terms + std::size_t{k} * W::kTerms;
    Tile<1, 4>{term, W::kTerms, term + kOwnFeatures, f[0].data(), x[k].data(), Run::kLength}.run(
        kOwnFeatures);
  }
}
static_assert(Run::kLength == 4 * kLaneCount);

}  // namespace

void gru_inputs(const Features& f, std::uint32_t pages, float* out, std::uint32_t stride) {
  for (std::uint32_t j = 0; j < kOwnFeatures; ++j) {
    float sum = 0;
    float most = 0;
    summarise(f[j].data(), pages, sum, most);
    out[std::size_t{j} * stride] = sum / static_cast<float>(pages);
    out[(std::size_t{kOwnFeatures} + j) * stride] = most;
  }
}

void gru_logits(const Features& f, const float* terms, std::uint32_t stride, Logits& x,
                std::uint32_t steps) {
  std::array<float, W::kOutputs> own{};
  for (std::uint32_t j = 0; j < steps * W::kTerms; ++j) own[j] = terms[std::size_t{j} * stride];
  weigh(own.data(), f, steps, x);
}

}  // namespace lehr::predictors
