// SPDX-License-Identifier: Apache-2.0
#include "predictors/weights.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace lehr::predictors {

namespace {

constexpr float kMost = 1e4F;

std::string text(std::span<const std::uint32_t> shape) {
  std::string out;
  for (const std::uint32_t n : shape) {
    out += out.empty() ? '[' : ',';
    out += std::to_string(n);
  }
  out += ']';
  return out;
}

}  // namespace

Result<std::span<const float>> find_weights(std::span<const Tensor> weights, std::string_view name,
                                            std::initializer_list<std::uint32_t> shape) {
  const std::span<const std::uint32_t> expected(shape.begin(), shape.size());
  const std::string called(name);
  for (const Tensor& t : weights) {
    if (t.name != name) continue;
    std::size_t count = 1;
    for (const std::uint32_t n : shape) count *= n;
    if (!std::equal(t.shape.begin(), t.shape.end(), expected.begin(), expected.end()) ||
        t.values.size() != count) {
      return invalid("weights: tensor '" + called + "' has shape " + text(t.shape) + " and " +
                     std::to_string(t.values.size()) + " values, expected " + text(expected));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (std::isfinite(t.values[i]) && std::abs(t.values[i]) <= kMost) continue;
      return invalid("weights: tensor '" + called + "', element " + std::to_string(i) + " is " +
                     std::to_string(t.values[i]) + ", expected a number of at most 10000");
    }
    return t.values;
  }
  return not_found("weights: no tensor '" + called + "' of shape " + text(expected));
}

}  // namespace lehr::predictors
