// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>
#include <vector>

namespace lehr::train {

/// Adam over arrays that stay where they are. Gradients are sums over pages; step() divides by the
/// weight of those pages.
class Adam {
 public:
  /// Takes part in step() from now on; returns where its gradient is summed up.
  float* add(std::span<float> values) {
    parts_.push_back({values, std::vector<float>(values.size()), std::vector<float>(values.size()),
                      std::vector<float>(values.size())});
    return parts_.back().gradient.data();
  }
  void step(float rate, float weight) {
    ++steps_;
    const float first = 1 - std::pow(0.9F, static_cast<float>(steps_));
    const float second = 1 - std::pow(0.999F, static_cast<float>(steps_));
    for (Part& p : parts_) {
      for (std::size_t i = 0; i < p.values.size(); ++i) {
        const float g = p.gradient[i] / weight;
        p.gradient[i] = 0;
        p.mean[i] += 0.1F * (g - p.mean[i]);
        p.square[i] += 0.001F * (g * g - p.square[i]);
        p.values[i] -= rate * (p.mean[i] / first) / (std::sqrt(p.square[i] / second) + 1e-8F);
      }
    }
  }

 private:
  struct Part {
    std::span<float> values;
    std::vector<float> gradient;
    std::vector<float> mean;
    std::vector<float> square;
  };
  std::vector<Part> parts_;
  std::uint32_t steps_ = 0;
};

}  // namespace lehr::train
