// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kernels/base/rng.hpp"
#include "predictors/networks.hpp"
#include "runtime/replay/layer_feed.hpp"

namespace lehr::train {

/// One run of pages as a model sees it, and what became of it.
struct Block {
  predictors::Features features{};
  std::array<std::array<float, predictors::Run::kLength>, predictors::kTrainedSteps> read{};
  std::array<float, predictors::Run::kLength> weight{};  ///< of each page in the loss; 0: none
  std::array<std::uint8_t, predictors::Run::kLength> numbers{};  ///< 1: its tokens hold digits
  std::uint32_t pages = 0;
};

/// The blocks of one KV group at one step, by position.
struct Sample {
  std::vector<Block> blocks;
};

struct SampleOptions {
  double share = 1;          ///< of group steps that become samples
  double number_weight = 2;  ///< of pages that hold digits: a weak point of all predictors
  std::uint32_t warmup = 8;  ///< first steps without samples
  std::uint64_t seed = 1;
};

/// Plays a recorded sequence and hands out samples in the order of its steps.
void for_each_sample(const runtime::TraceSelection& selection, const SampleOptions& options,
                     const std::function<void(const Sample&)>& take);

}  // namespace lehr::train
