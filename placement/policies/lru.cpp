// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/recency.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

const PolicyDescriptor& lru_descriptor() {
  static const PolicyDescriptor descriptor{
      "lru",
      "fill on read, the least recently used leaves",
      {},
      {.block_cache = true},
      nullptr,
      [](const Parameters&) -> std::unique_ptr<Replacement> { return std::make_unique<Recency>(); },
  };
  return descriptor;
}

}  // namespace lehr::placement
