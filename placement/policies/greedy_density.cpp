// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "placement/policies/density.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"half-life",
                  "visits after which a visit counts half, in multiples of the capacity", 8, 0.01,
                  1e6},
};

}  // namespace

const PolicyDescriptor& greedy_density_descriptor() {
  static const PolicyDescriptor descriptor{
      "greedy-density",
      "keeps the pages of highest expected visits per byte; bypasses what is worth less",
      kParameters,
      {.block_cache = true},
      nullptr,
      [](const Parameters& p) -> std::unique_ptr<Replacement> {
        return std::make_unique<Density>(p.at("half-life"));
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
