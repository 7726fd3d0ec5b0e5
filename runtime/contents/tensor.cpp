// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/tensor.hpp"

#include <fmt/core.h>

namespace lehr::contents {

const char* name(Element element) {
  switch (element) {
    case Element::kF32:
      return "f32";
    case Element::kF16:
      return "f16";
    case Element::kBf16:
      return "bf16";
  }
  return "unknown";
}

Status check_tensor(const Tensor& tensor, const char* what, std::size_t batch, std::size_t heads,
                    std::size_t tokens, std::size_t dim, Element element) {
  const std::array<std::int64_t, 4> wanted{
      static_cast<std::int64_t>(batch), static_cast<std::int64_t>(heads),
      static_cast<std::int64_t>(tokens), static_cast<std::int64_t>(dim)};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const bool fits =
        axis == 2 ? tensor.shape[axis] >= wanted[axis] : tensor.shape[axis] == wanted[axis];
    if (fits) continue;
    return invalid(
        fmt::format("{}: [batch, heads, tokens, dim] is [{}, {}, {}, {}], expected [{}, "
                    "{}, {}{}, {}]",
                    what, tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3], batch,
                    heads, axis == 2 ? "at least " : "", tokens, dim),
        Reason::kLayoutMismatch);
  }
  if (tensor.element != element) {
    return invalid(fmt::format("{}: elements are {}, the runtime's pages hold {}", what,
                               name(tensor.element), name(element)),
                   Reason::kLayoutMismatch);
  }
  return {};
}

}  // namespace lehr::contents
