// SPDX-License-Identifier: Apache-2.0
// The recurrent network of networks.hpp, sixteen groups side by side.
#include <algorithm>
#include <string>

#include "kernels/base/simd.hpp"
#include "predictors/logit.hpp"
#include "predictors/networks.hpp"

namespace lehr::predictors {

namespace {

using W = GruWeights;
constexpr std::uint32_t kL = GruBatch::kLanes;
constexpr std::uint32_t kTile = 8;  // outputs at a time: their sums stay in registers

/// out[j][lane] = start[j] + sum over k of m[j][k] * in[k][lane]; rows is a multiple of kTile.
LEHR_VECTOR_CLONES void multiply(const float* m, const float* start, const float* in,
                                 std::uint32_t rows, std::uint32_t columns, float* out) {
  for (std::uint32_t j = 0; j < rows; j += kTile) {
    float acc[kTile][kL];
    for (std::uint32_t t = 0; t < kTile; ++t) {
      for (std::uint32_t l = 0; l < kL; ++l) acc[t][l] = start[j + t];
    }
    for (std::uint32_t k = 0; k < columns; ++k) {
      const float* x = in + std::size_t{k} * kL;
      for (std::uint32_t t = 0; t < kTile; ++t) {
        const float w = m[std::size_t{j + t} * columns + k];
        for (std::uint32_t l = 0; l < kL; ++l) acc[t][l] += w * x[l];
      }
    }
    for (std::uint32_t t = 0; t < kTile; ++t) {
      for (std::uint32_t l = 0; l < kL; ++l) out[std::size_t{j + t} * kL + l] = acc[t][l];
    }
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

void GruBatch::run(const GruWeights& weights) {
  static const std::vector<float> kZero(std::size_t{W::kHidden} * kL, 0.0F);
  static const std::vector<float> kNoBias(W::kGates, 0.0F);
  float* from_input = gates_.data();
  float* from_state = gates_.data() + std::size_t{W::kGates} * kL;
  for (std::uint32_t d = 0; d < 2; ++d) {
    const GruWeights::Direction& dir = weights.direction[d];
    const float* before = kZero.data();
    for (std::uint32_t n = 0; n < blocks_; ++n) {
      const std::uint32_t block = d == 0 ? n : blocks_ - 1 - n;
      std::array<float, kL> alive{};
      for (std::uint32_t l = 0; l < kL; ++l) alive[l] = block < length_[l] ? 1.0F : 0.0F;
      multiply(dir.w.data(), dir.b.data(), input(block, 0), W::kGates, W::kInputs, from_input);
      multiply(dir.u.data(), kNoBias.data(), before, W::kGates, W::kHidden, from_state);
      float* after = &states_[(std::size_t{block} * 2 + d) * W::kHidden * kL];
      step(from_input, from_state, before, alive.data(), after);
      before = after;
    }
  }
  // 45 outputs: the last rows of the last tile are done one by one.
  constexpr std::uint32_t kWhole = W::kOutputs / kTile * kTile;
  for (std::uint32_t block = 0; block < blocks_; ++block) {
    const float* states = &states_[std::size_t{block} * 2 * W::kHidden * kL];
    float* out = &outputs_[std::size_t{block} * W::kOutputs * kL];
    multiply(weights.v.data(), weights.c.data(), states, kWhole, 2 * W::kHidden, out);
    for (std::uint32_t j = kWhole; j < W::kOutputs; ++j) {
      float* row = out + std::size_t{j} * kL;
      for (std::uint32_t l = 0; l < kL; ++l) row[l] = weights.c[j];
      for (std::uint32_t k = 0; k < 2 * W::kHidden; ++k) {
        const float w = weights.v[std::size_t{j} * 2 * W::kHidden + k];
        for (std::uint32_t l = 0; l < kL; ++l) row[l] += w * states[std::size_t{k} * kL + l];
      }
    }
  }
}

void gru_inputs(const Features& f, std::uint32_t pages, float* out, std::uint32_t stride) {
  for (std::uint32_t j = 0; j < kOwnFeatures; ++j) {
    float sum = 0;
    float most = f[j][0];
    for (std::uint32_t i = 0; i < pages; ++i) {
      sum += f[j][i];
      most = std::max(most, f[j][i]);
    }
    out[std::size_t{j} * stride] = sum / static_cast<float>(pages);
    out[(std::size_t{kOwnFeatures} + j) * stride] = most;
  }
}

void gru_logits(const Features& f, const float* terms, std::uint32_t stride, Logits& x) {
  for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
    const float* term = terms + std::size_t{k} * W::kTerms * stride;
    const float constant = term[std::size_t{kOwnFeatures} * stride];
    for (float& v : x[k]) v = constant;
    for (std::uint32_t j = 0; j < kOwnFeatures; ++j) {
      const float w = term[std::size_t{j} * stride];
      for (std::uint32_t i = 0; i < Run::kLength; ++i) x[k][i] += w * f[j][i];
    }
  }
}

}  // namespace lehr::predictors
