// SPDX-License-Identifier: Apache-2.0
// The recurrent network's gradient: back through the blocks of a group, both ways.
#include <algorithm>
#include <cmath>

#include "predictors/logit.hpp"
#include "tools/train/trainers.hpp"

namespace lehr::train {

namespace {

using predictors::GruWeights;
using predictors::kTrainedSteps;
using predictors::Logits;
using predictors::Run;
using predictors::sigmoid;
constexpr std::uint32_t kH = GruWeights::kHidden;
constexpr std::uint32_t kG = GruWeights::kGates;
constexpr std::uint32_t kI = GruWeights::kInputs;
constexpr std::uint32_t kO = GruWeights::kOutputs;
constexpr std::uint32_t kTerms = GruWeights::kTerms;

/// out += m x, with m [rows, columns].
void multiply(const float* m, const float* x, std::uint32_t rows, std::uint32_t columns,
              float* out) {
  for (std::uint32_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (std::uint32_t c = 0; c < columns; ++c) sum += m[std::size_t{r} * columns + c] * x[c];
    out[r] += sum;
  }
}
/// out += m^T y; d += y x^T.
void back(const float* m, const float* y, const float* x, std::uint32_t rows, std::uint32_t columns,
          float* out, float* d) {
  for (std::uint32_t r = 0; r < rows; ++r) {
    const float g = y[r];
    if (g == 0) continue;
    const std::size_t at = std::size_t{r} * columns;
    for (std::uint32_t c = 0; c < columns; ++c) d[at + c] += g * x[c];
    if (out == nullptr) continue;
    for (std::uint32_t c = 0; c < columns; ++c) out[c] += g * m[at + c];
  }
}

class GruTrainer final : public Trainer {
 public:
  explicit GruTrainer(std::uint64_t seed) {
    Rng rng(seed);
    for (std::size_t d = 0; d < 2; ++d) {
      scatter(rng, 0.15F, w_.direction[d].w);
      scatter(rng, 0.09F, w_.direction[d].u);
    }
    scatter(rng, 0.02F, w_.v);
    for (std::uint32_t k = 0; k < kTrainedSteps; ++k) w_.c[k * kTerms + kTerms - 1] = -2;
    for (std::size_t d = 0; d < 2; ++d) {
      dw_[d] = adam_.add(w_.direction[d].w);
      du_[d] = adam_.add(w_.direction[d].u);
      db_[d] = adam_.add(w_.direction[d].b);
    }
    dv_ = adam_.add(w_.v);
    dc_ = adam_.add(w_.c);
  }
  const char* name() const override { return "gru"; }
  Status load(std::span<const predictors::Tensor> weights) override {
    LEHR_ASSIGN(GruWeights given, GruWeights::from(weights));
    for (std::size_t d = 0; d < 2; ++d) {  // in place: Adam knows where they are
      std::copy(given.direction[d].w.begin(), given.direction[d].w.end(),
                w_.direction[d].w.begin());
      std::copy(given.direction[d].u.begin(), given.direction[d].u.end(),
                w_.direction[d].u.begin());
      std::copy(given.direction[d].b.begin(), given.direction[d].b.end(),
                w_.direction[d].b.begin());
    }
    std::copy(given.v.begin(), given.v.end(), w_.v.begin());
    std::copy(given.c.begin(), given.c.end(), w_.c.begin());
    return {};
  }

  void see(const Sample& sample, bool learn, float rate, Loss& loss) override {
    const auto n = static_cast<std::uint32_t>(sample.blocks.size());
    if (n == 0) return;
    blocks_.assign(n, {});
    for (std::uint32_t b = 0; b < n; ++b)
      predictors::gru_inputs(sample.blocks[b].features, sample.blocks[b].pages,
                             blocks_[b].input.data(), 1);
    for (std::size_t d = 0; d < 2; ++d) forward(d);
    for (std::uint32_t b = 0; b < n; ++b) head(sample.blocks[b], blocks_[b], learn, loss);
    if (!learn) return;
    for (std::size_t d = 0; d < 2; ++d) backward(d);
    for (const Block& b : sample.blocks) weight_ += static_cast<float>(b.pages);
    if (++samples_ % 8 != 0) return;
    adam_.step(rate, weight_);
    weight_ = 0;
  }

  std::vector<NamedTensor> weights() const override {
    std::vector<NamedTensor> out;
    for (std::size_t d = 0; d < 2; ++d) {
      const std::string name = d == 0 ? "gru.f." : "gru.b.";
      out.push_back({name + "w", {kG, kI}, w_.direction[d].w});
      out.push_back({name + "u", {kG, kH}, w_.direction[d].u});
      out.push_back({name + "b", {kG}, w_.direction[d].b});
    }
    out.push_back({"gru.v", {kO, 2 * kH}, w_.v});
    out.push_back({"gru.c", {kO}, w_.c});
    return out;
  }

 private:
  struct Direction {
    std::array<float, kH> before{}, z{}, r{}, n{}, un{}, after{};
    std::array<float, kH> grad{};  ///< of `after`
  };
  struct BlockState {
    std::array<float, kI> input{};
    std::array<Direction, 2> direction;
  };

  BlockState& at(std::size_t d, std::size_t i) {
    return blocks_[d == 0 ? i : blocks_.size() - 1 - i];
  }

  void forward(std::size_t d) {
    const auto& w = w_.direction[d];
    std::array<float, kH> state{};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      BlockState& b = at(d, i);
      Direction& s = b.direction[d];
      s.before = state;
      std::array<float, kG> x;
      std::copy(w.b.begin(), w.b.end(), x.begin());
      multiply(w.w.data(), b.input.data(), kG, kI, x.data());
      std::array<float, kG> u{};
      multiply(w.u.data(), state.data(), kG, kH, u.data());
      for (std::uint32_t j = 0; j < kH; ++j) {
        s.z[j] = sigmoid(x[j] + u[j]);
        s.r[j] = sigmoid(x[kH + j] + u[kH + j]);
        s.un[j] = u[2 * kH + j];
        s.n[j] = std::tanh(x[2 * kH + j] + s.r[j] * s.un[j]);
        s.after[j] = (1 - s.z[j]) * s.n[j] + s.z[j] * state[j];
      }
      state = s.after;
    }
  }

  void head(const Block& block, BlockState& b, bool learn, Loss& loss) {
    std::array<float, 2 * kH> state;
    std::copy(b.direction[0].after.begin(), b.direction[0].after.end(), state.begin());
    std::copy(b.direction[1].after.begin(), b.direction[1].after.end(), state.begin() + kH);
    std::array<float, kO> terms;
    std::copy(w_.c.begin(), w_.c.end(), terms.begin());
    multiply(w_.v.data(), state.data(), kO, 2 * kH, terms.data());
    predictors::gru_logits(block.features, terms.data(), 1, x_);
    loss_of(block, x_, loss);
    if (!learn) return;
    std::array<float, kO> d;
    for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
      for (std::uint32_t j = 0; j < kTerms; ++j) {
        float sum = 0;
        for (std::uint32_t i = 0; i < Run::kLength; ++i)
          sum += x_[k][i] * (j + 1 < kTerms ? block.features[j][i] : 1.0F);
        d[k * kTerms + j] = sum;
        dc_[k * kTerms + j] += sum;
      }
    }
    std::array<float, 2 * kH> g{};
    back(w_.v.data(), d.data(), state.data(), kO, 2 * kH, g.data(), dv_);
    std::copy(g.begin(), g.begin() + kH, b.direction[0].grad.begin());
    std::copy(g.begin() + kH, g.end(), b.direction[1].grad.begin());
  }

  void backward(std::size_t d) {
    const auto& w = w_.direction[d];
    std::array<float, kH> carry{};
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      BlockState& b = at(d, i);
      const Direction& s = b.direction[d];
      std::array<float, kG> gx;
      std::array<float, kG> gu;
      std::array<float, kH> before{};
      for (std::uint32_t j = 0; j < kH; ++j) {
        const float g = s.grad[j] + carry[j];
        const float dz = g * (s.before[j] - s.n[j]) * s.z[j] * (1 - s.z[j]);
        const float dn = g * (1 - s.z[j]) * (1 - s.n[j] * s.n[j]);
        const float dr = dn * s.un[j] * s.r[j] * (1 - s.r[j]);
        gx[j] = gu[j] = dz;
        gx[kH + j] = gu[kH + j] = dr;
        gx[2 * kH + j] = dn;
        gu[2 * kH + j] = dn * s.r[j];
        before[j] = g * s.z[j];
      }
      for (std::uint32_t j = 0; j < kG; ++j) db_[d][j] += gx[j];
      back(w.w.data(), gx.data(), b.input.data(), kG, kI, nullptr, dw_[d]);
      back(w.u.data(), gu.data(), s.before.data(), kG, kH, before.data(), du_[d]);
      carry = before;
    }
  }

  GruWeights w_;
  Adam adam_;
  std::array<float*, 2> dw_{};
  std::array<float*, 2> du_{};
  std::array<float*, 2> db_{};
  float* dv_ = nullptr;
  float* dc_ = nullptr;
  std::vector<BlockState> blocks_;
  Logits x_{};
  std::uint32_t samples_ = 0;
  float weight_ = 0;
};

}  // namespace

std::unique_ptr<Trainer> make_gru_trainer(std::uint64_t seed) {
  return std::make_unique<GruTrainer>(seed);
}

}  // namespace lehr::train
