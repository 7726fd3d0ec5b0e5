// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/result.hpp"
#include "predictors/column_predictor.hpp"
#include "predictors/weights.hpp"

// The trained models as plain functions from features to logits; training and inference share them.

namespace lehr::predictors {

/// A line over a page's own features for each step ahead.
struct LogisticWeights {
  static constexpr std::uint32_t kInputs = kOwnFeatures;
  std::array<std::array<float, kInputs>, kTrainedSteps> weight{};
  std::array<float, kTrainedSteps> bias{};

  /// Tensors "logistic.weight" [3,14] and "logistic.bias" [3].
  static Result<LogisticWeights> from(std::span<const Tensor> weights);
  /// The first `steps` rows.
  void logits(const Features& f, Logits& x, std::uint32_t steps = kTrainedSteps) const;
  static constexpr std::uint64_t kFlops = std::uint64_t{2} * kInputs * kTrainedSteps;
};

/// One hidden layer of 16 rectified units over all features.
struct NetWeights {
  static constexpr std::uint32_t kInputs = kFeatures;
  static constexpr std::uint32_t kHidden = 16;
  std::array<std::array<float, kInputs>, kHidden> w1{};
  std::array<float, kHidden> b1{};
  std::array<std::array<float, kHidden>, kTrainedSteps> w2{};
  std::array<float, kTrainedSteps> b2{};

  /// Tensors "net.w1" [16,19], "net.b1" [16], "net.w2" [3,16], "net.b2" [3].
  static Result<NetWeights> from(std::span<const Tensor> weights);
  /// The first `steps` rows.
  void logits(const Features& f, Logits& x, std::uint32_t steps = kTrainedSteps) const;
  static constexpr std::uint64_t kFlops = std::uint64_t{2} * kHidden * (kInputs + kTrainedSteps);
};

/// A recurrent network over the blocks of a group's pages in the order of their positions, once
/// from each side, 128 hidden units each. A block is a run of up to 64 pages, told by the mean and
/// the largest of each feature of its pages; its two states set the weights by which the features
/// of its pages make the logits. So the state costs one recurrent step a block, not a page.
struct GruWeights {
  static constexpr std::uint32_t kHidden = 128;
  static constexpr std::uint32_t kGates = 3 * kHidden;  ///< update, reset, candidate
  static constexpr std::uint32_t kInputs = 2 * kOwnFeatures;
  static constexpr std::uint32_t kTerms = kOwnFeatures + 1;  ///< features and a constant
  static constexpr std::uint32_t kOutputs = kTrainedSteps * kTerms;

  struct Direction {
    std::vector<float> w;  ///< [kGates, kInputs]
    std::vector<float> u;  ///< [kGates, kHidden]
    std::vector<float> b;  ///< [kGates]
  };
  std::array<Direction, 2> direction;  ///< forwards, backwards
  std::vector<float> v;                ///< [kOutputs, 2 * kHidden]
  std::vector<float> c;                ///< [kOutputs]: the weights of a block that says nothing

  GruWeights();
  /// Tensors "gru.{f,b}.{w,u,b}", "gru.v" and "gru.c" of the shapes above.
  static Result<GruWeights> from(std::span<const Tensor> weights);
  static constexpr std::uint64_t kFlopsOfBlock =
      std::uint64_t{4} * kGates * (kInputs + kHidden) + std::uint64_t{4} * kOutputs * kHidden;
};

/// A batch of groups through a GruWeights: lanes run side by side, so that a weight is loaded once
/// for sixteen groups. Holds scratch memory.
class GruBatch {
 public:
  static constexpr std::uint32_t kLanes = 16;

  /// Inputs of block `block` of lane `lane`, kInputs of them a kLanes apart.
  void shape(std::uint32_t blocks);
  float* input(std::uint32_t block, std::uint32_t lane) {
    return &inputs_[std::size_t{block} * GruWeights::kInputs * kLanes + lane];
  }
  /// Lane `lane` has `blocks` blocks; later ones are skipped. Lanes not named have none.
  void set_length(std::uint32_t lane, std::uint32_t blocks) { length_[lane] = blocks; }
  /// Outputs of the first `steps` steps ahead.
  void run(const GruWeights& weights, std::uint32_t steps = kTrainedSteps);
  /// Term weights of a block, kTerms a step ahead, a kLanes apart.
  const float* output(std::uint32_t block, std::uint32_t lane) const {
    return &outputs_[std::size_t{block} * GruWeights::kOutputs * kLanes + lane];
  }

 private:
  std::uint32_t blocks_ = 0;
  std::array<std::uint32_t, kLanes> length_{};
  std::vector<float> inputs_;
  std::vector<float> states_;  ///< [block][direction][kHidden][kLanes]
  std::vector<float> outputs_;
  std::vector<float> gates_;
};

/// The block's inputs from its pages' features: mean and largest of each, `stride` apart.
void gru_inputs(const Features& f, std::uint32_t pages, float* out, std::uint32_t stride);
/// Logits of the block's pages for the first `steps` steps ahead, from its term weights, `stride`
/// apart.
void gru_logits(const Features& f, const float* terms, std::uint32_t stride, Logits& x,
                std::uint32_t steps = kTrainedSteps);

}  // namespace lehr::predictors
