// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/first_touch.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

const PolicyDescriptor& static_descriptor() {
  static const PolicyDescriptor descriptor{
      "static",
      "first touch: what came to HBM first stays, the rest is read in place",
      {},
      {.block_cache = true},
      nullptr,
      [](const Parameters&) -> std::unique_ptr<Replacement> {
        return std::make_unique<FirstTouch>();
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
