// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/shapes.hpp"

namespace lehr::tools {

std::span<const ModelShape> model_shapes() {
  // Parameters x 2 bytes; Qwen3-30B-A3B reads its 3.3 B active parameters.
  static constexpr ModelShape kShapes[] = {
      {"llama-3.1-8b", 128, 2, 4, 16.1}, {"llama-3.1-70b", 128, 2, 8, 141.2},
      {"llama-2-70b", 128, 2, 8, 138.0}, {"qwen3-30b-a3b", 128, 2, 8, 6.6},
      {"mistral-7b", 128, 2, 4, 14.5},   {"smollm2-135m", 64, 2, 3, 0.27},
  };
  return kShapes;
}

}  // namespace lehr::tools
