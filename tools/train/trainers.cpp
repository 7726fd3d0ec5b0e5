// SPDX-License-Identifier: Apache-2.0
#include "tools/train/trainers.hpp"

#include <algorithm>

#include "predictors/logit.hpp"

namespace lehr::train {

using predictors::kTrainedSteps;
using predictors::LogisticWeights;
using predictors::Logits;
using predictors::NetWeights;
using predictors::Run;

void loss_of(const Block& block, Logits& x, Loss& loss) {
  for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
    float sum = 0;
    for (std::uint32_t i = 0; i < block.pages; ++i) {
      const float p = predictors::sigmoid(x[k][i]);
      const float kept = std::clamp(p, 1e-6F, 1 - 1e-6F);
      sum -= block.weight[i] * std::log(block.read[k][i] > 0 ? kept : 1 - kept);
      x[k][i] = block.weight[i] * (p - block.read[k][i]);
    }
    std::fill(x[k].begin() + block.pages, x[k].end(), 0.0F);
    loss.sum[k] += static_cast<double>(sum);
  }
  for (std::uint32_t i = 0; i < block.pages; ++i)
    loss.weight += static_cast<double>(block.weight[i]);
}

void scatter(Rng& rng, float scale, std::span<float> values) {
  for (float& v : values) v = scale * static_cast<float>(2 * rng.uniform() - 1);
}

namespace {

template <std::size_t R, std::size_t C>
std::span<float> flat(std::array<std::array<float, C>, R>& a) {
  return {a[0].data(), R * C};
}

template <std::size_t R, std::size_t C>
NamedTensor tensor(const char* name, const std::array<std::array<float, C>, R>& a) {
  return {name, {R, C}, std::vector<float>(a[0].data(), a[0].data() + R * C)};
}
template <std::size_t R>
NamedTensor tensor(const char* name, const std::array<float, R>& a) {
  return {name, {R}, std::vector<float>(a.begin(), a.end())};
}

float dot(const float* a, const float* b) {
  float sum = 0;
  for (std::uint32_t i = 0; i < Run::kLength; ++i) sum += a[i] * b[i];
  return sum;
}

float total(const float* a) {
  float sum = 0;
  for (std::uint32_t i = 0; i < Run::kLength; ++i) sum += a[i];
  return sum;
}

/// Moves the weights every `kBatch` samples.
class Batched : public Trainer {
 protected:
  static constexpr std::uint32_t kBatch = 8;
  void count(const Sample& sample, float rate) {
    for (const Block& b : sample.blocks) weight_ += static_cast<float>(b.pages);
    if (++samples_ % kBatch != 0 || !(weight_ > 0)) return;
    adam_.step(rate, weight_);
    weight_ = 0;
  }
  Adam adam_;

 private:
  std::uint32_t samples_ = 0;
  float weight_ = 0;
};

class LogisticTrainer final : public Batched {
 public:
  LogisticTrainer() : dw_(adam_.add(flat(w_.weight))), db_(adam_.add(w_.bias)) {}
  const char* name() const override { return "logistic"; }
  Status load(std::span<const predictors::Tensor> weights) override {
    LEHR_ASSIGN(w_, LogisticWeights::from(weights));
    return {};
  }
  void see(const Sample& sample, bool learn, float rate, Loss& loss) override {
    for (const Block& b : sample.blocks) {
      w_.logits(b.features, x_);
      loss_of(b, x_, loss);
      if (!learn) continue;
      for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
        for (std::uint32_t j = 0; j < LogisticWeights::kInputs; ++j)
          dw_[k * LogisticWeights::kInputs + j] += dot(x_[k].data(), b.features[j].data());
        db_[k] += total(x_[k].data());
      }
    }
    if (learn) count(sample, 3 * rate);
  }
  std::vector<NamedTensor> weights() const override {
    return {tensor("logistic.weight", w_.weight), tensor("logistic.bias", w_.bias)};
  }

 private:
  LogisticWeights w_;
  float* dw_;
  float* db_;
  Logits x_{};
};

class NetTrainer final : public Batched {
 public:
  explicit NetTrainer(std::uint64_t seed)
      : d1_(adam_.add(flat(w_.w1))),
        e1_(adam_.add(w_.b1)),
        d2_(adam_.add(flat(w_.w2))),
        e2_(adam_.add(w_.b2)) {
    Rng rng(seed);
    scatter(rng, 0.4F, flat(w_.w1));
    scatter(rng, 0.4F, flat(w_.w2));
    w_.b2.fill(-2);
  }
  const char* name() const override { return "net"; }
  Status load(std::span<const predictors::Tensor> weights) override {
    LEHR_ASSIGN(w_, NetWeights::from(weights));
    return {};
  }
  void see(const Sample& sample, bool learn, float rate, Loss& loss) override {
    for (const Block& b : sample.blocks) block(b, learn, loss);
    if (learn) count(sample, 2 * rate);
  }
  std::vector<NamedTensor> weights() const override {
    return {tensor("net.w1", w_.w1), tensor("net.b1", w_.b1), tensor("net.w2", w_.w2),
            tensor("net.b2", w_.b2)};
  }

 private:
  void block(const Block& b, bool learn, Loss& loss) {
    constexpr std::uint32_t n = Run::kLength;
    for (std::uint32_t h = 0; h < NetWeights::kHidden; ++h) {
      auto& out = hidden_[h];
      out.fill(w_.b1[h]);
      for (std::uint32_t j = 0; j < NetWeights::kInputs; ++j) {
        for (std::uint32_t i = 0; i < n; ++i) out[i] += w_.w1[h][j] * b.features[j][i];
      }
      for (float& v : out) v = std::max(v, 0.0F);
    }
    for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
      x_[k].fill(w_.b2[k]);
      for (std::uint32_t h = 0; h < NetWeights::kHidden; ++h) {
        for (std::uint32_t i = 0; i < n; ++i) x_[k][i] += w_.w2[k][h] * hidden_[h][i];
      }
    }
    loss_of(b, x_, loss);
    if (!learn) return;
    for (std::uint32_t k = 0; k < kTrainedSteps; ++k) {
      for (std::uint32_t h = 0; h < NetWeights::kHidden; ++h)
        d2_[k * NetWeights::kHidden + h] += dot(x_[k].data(), hidden_[h].data());
      e2_[k] += total(x_[k].data());
    }
    std::array<float, n> back;
    for (std::uint32_t h = 0; h < NetWeights::kHidden; ++h) {
      for (std::uint32_t i = 0; i < n; ++i) {
        float sum = 0;
        for (std::uint32_t k = 0; k < kTrainedSteps; ++k) sum += w_.w2[k][h] * x_[k][i];
        back[i] = hidden_[h][i] > 0 ? sum : 0;
      }
      for (std::uint32_t j = 0; j < NetWeights::kInputs; ++j)
        d1_[h * NetWeights::kInputs + j] += dot(back.data(), b.features[j].data());
      e1_[h] += total(back.data());
    }
  }

  NetWeights w_;
  float* d1_;
  float* e1_;
  float* d2_;
  float* e2_;
  std::array<std::array<float, Run::kLength>, NetWeights::kHidden> hidden_{};
  Logits x_{};
};

}  // namespace

std::unique_ptr<Trainer> make_logistic_trainer() { return std::make_unique<LogisticTrainer>(); }
std::unique_ptr<Trainer> make_net_trainer(std::uint64_t seed) {
  return std::make_unique<NetTrainer>(seed);
}

}  // namespace lehr::train
