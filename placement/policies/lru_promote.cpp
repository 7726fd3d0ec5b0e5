// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/recency.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

const PolicyDescriptor& lru_promote_descriptor() {
  static const PolicyDescriptor descriptor{
      "lru-promote",
      "read in place, then promote: two crossings a miss; the least recently used leaves",
      {},
      {},
      [](const Parameters&) { return promote_after_read(std::make_unique<Recency>()); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
