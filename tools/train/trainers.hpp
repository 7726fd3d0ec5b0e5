// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/rng.hpp"
#include "tools/train/adam.hpp"
#include "tools/train/samples.hpp"

namespace lehr::train {

/// A tensor of a weights file in the making.
struct NamedTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
};

/// Sum of log losses and of weights, for each step ahead.
struct Loss {
  std::array<double, predictors::kTrainedSteps> sum{};
  double weight = 0;
};

/// One model in training. Gradients by hand: a hundred lines against a framework.
class Trainer {
 public:
  virtual ~Trainer() = default;
  virtual const char* name() const = 0;
  /// Continues from these weights.
  virtual Status load(std::span<const predictors::Tensor> weights) = 0;
  /// One sample's loss, and its gradient if `learn`; weights move every few samples.
  virtual void see(const Sample& sample, bool learn, float rate, Loss& loss) = 0;
  virtual std::vector<NamedTensor> weights() const = 0;
};

std::unique_ptr<Trainer> make_logistic_trainer();
std::unique_ptr<Trainer> make_net_trainer(std::uint64_t seed);
std::unique_ptr<Trainer> make_gru_trainer(std::uint64_t seed);

/// Log loss of a block's logits; the logits become its gradient.
void loss_of(const Block& block, predictors::Logits& x, Loss& loss);

/// Uniform in [-1, 1] times `scale`.
void scatter(Rng& rng, float scale, std::span<float> values);

}  // namespace lehr::train
