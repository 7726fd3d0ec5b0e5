// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/result.hpp"
#include "predictors/predictor.hpp"

namespace lehr::runtime {

/// Trained weights of predictors, as a safetensors file of at most 2 MiB holds them: metadata
/// format = "lehr.predictor-weights" and version = "1", tensors of type F32. What the tensors are
/// and whether their numbers make sense is each predictor's to check.
class PredictorWeights {
 public:
  static constexpr std::string_view kFormat = "lehr.predictor-weights";
  static constexpr std::string_view kVersion = "1";
  static constexpr std::size_t kMostBytes = std::size_t{2} << 20;

  PredictorWeights() = default;
  PredictorWeights(PredictorWeights&&) = default;
  PredictorWeights& operator=(PredictorWeights&&) = default;

  /// Bytes need not outlive the call; `name` leads error lines.
  static Result<PredictorWeights> parse(std::span<const std::byte> bytes, std::string_view name);
  static Result<PredictorWeights> read(const std::filesystem::path& path);
  /// Those that come with the project.
  static const PredictorWeights& shipped();
  /// "shipped", or a file.
  static Result<PredictorWeights> named(const std::string& what);

  /// Valid as long as the object, across moves.
  std::span<const predictors::Tensor> tensors() const { return tensors_; }
  /// Of the training: its command, data and figures. Empty if the file does not say.
  std::string_view note(std::string_view key) const;

 private:
  struct Stored {
    std::string name;
    std::vector<std::uint32_t> shape;
    std::vector<float> values;
  };
  std::vector<Stored> stored_;
  std::vector<predictors::Tensor> tensors_;
  std::vector<std::pair<std::string, std::string>> notes_;
};

}  // namespace lehr::runtime
