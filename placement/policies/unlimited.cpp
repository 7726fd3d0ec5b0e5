// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/first_touch.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

const PolicyDescriptor& unlimited_descriptor() {
  static const PolicyDescriptor descriptor{
      "unlimited",
      "everything in HBM, however large: what tiering is measured against",
      {},
      {.unlimited = true},
      [](const Parameters&) { return fill_on_read(std::make_unique<FirstTouch>()); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
