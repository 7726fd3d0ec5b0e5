// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace lehr::tools {

/// KV shapes of known models, from their published configurations. A trace keeps its layers, heads
/// and pages; head_dim and the element size give the bytes of a page, weights the HBM bytes of a
/// step.
struct ModelShape {
  std::string_view name;
  unsigned head_dim;
  unsigned element_bytes;
  unsigned query_heads_per_group;
  double
      weights_gb;  ///< read in each decode step, all layers (active experts only), 16-bit weights
};

std::span<const ModelShape> model_shapes();

}  // namespace lehr::tools
