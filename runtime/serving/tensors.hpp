// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/contents/tensor.hpp"

namespace lehr::serving {

inline contents::Tensor dense(std::byte* memory, contents::Element element, std::int64_t batch,
                              std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  return {
      memory, element, {batch, heads, tokens, dim}, {heads * tokens * dim, tokens * dim, dim, 1}};
}
/// A dense tensor of `memory`, which becomes as large as need be.
inline contents::Tensor dense(std::vector<std::byte>& memory, contents::Element element,
                              std::int64_t batch, std::int64_t heads, std::int64_t tokens,
                              std::int64_t dim) {
  memory.resize(static_cast<std::size_t>(batch * heads * tokens * dim) *
                contents::bytes_of(element));
  return dense(memory.data(), element, batch, heads, tokens, dim);
}

/// Some of its heads.
inline contents::Tensor heads_of(const contents::Tensor& tensor, std::uint32_t first,
                                 std::uint32_t heads) {
  contents::Tensor part = tensor;
  if (tensor.data != nullptr) part.data = tensor.row(0, first, 0);
  part.shape[1] = heads;
  return part;
}

/// Its tokens from `first` on.
inline contents::Tensor tokens_from(const contents::Tensor& tensor, std::uint64_t first) {
  contents::Tensor part = tensor;
  if (tensor.data != nullptr) part.data = tensor.row(0, 0, first);
  part.shape[2] -= static_cast<std::int64_t>(first);
  return part;
}

}  // namespace lehr::serving
