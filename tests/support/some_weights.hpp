// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kernels/base/rng.hpp"
#include "predictors/networks.hpp"

namespace lehr::test {

/// Small random weights of every trained model, with room to spoil them.
struct SomeWeights {
  struct One {
    std::string name;
    std::vector<std::uint32_t> shape;
    std::vector<float> values;
  };
  std::vector<One> all;

  explicit SomeWeights(std::uint64_t seed = 1, float scale = 0.3F) {
    using predictors::GruWeights;
    using predictors::NetWeights;
    Rng rng(seed);
    const auto add = [&](const char* name, std::vector<std::uint32_t> shape) {
      std::size_t n = 1;
      for (const std::uint32_t s : shape) n *= s;
      One one{name, std::move(shape), std::vector<float>(n)};
      for (float& v : one.values) v = scale * static_cast<float>(2 * rng.uniform() - 1);
      all.push_back(std::move(one));
    };
    add("logistic.weight", {3, predictors::kOwnFeatures});
    add("logistic.bias", {3});
    add("net.w1", {NetWeights::kHidden, NetWeights::kInputs});
    add("net.b1", {NetWeights::kHidden});
    add("net.w2", {3, NetWeights::kHidden});
    add("net.b2", {3});
    for (const char* d : {"f", "b"}) {
      const std::string prefix = std::string("gru.") + d + ".";
      add((prefix + "w").c_str(), {GruWeights::kGates, GruWeights::kInputs});
      add((prefix + "u").c_str(), {GruWeights::kGates, GruWeights::kHidden});
      add((prefix + "b").c_str(), {GruWeights::kGates});
    }
    add("gru.v", {GruWeights::kOutputs, 2 * GruWeights::kHidden});
    add("gru.c", {GruWeights::kOutputs});
  }

  std::vector<predictors::Tensor> tensors() const {
    std::vector<predictors::Tensor> out;
    for (const One& o : all) out.push_back({o.name, o.shape, o.values});
    return out;
  }
};

}  // namespace lehr::test
