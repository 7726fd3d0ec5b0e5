// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/result.hpp"
#include "runtime/contents/cpu_attend.hpp"

namespace lehr::contents {

/// A tensor [batch, heads, tokens, dim] in the caller's memory. Strides in elements; the last axis
/// is dense.
struct Tensor {
  std::byte* data = nullptr;  ///< of its first element
  Element element = Element::kF32;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  std::byte* row(std::size_t batch, std::size_t head, std::size_t token) const {
    const std::int64_t at = static_cast<std::int64_t>(batch) * stride[0] +
                            static_cast<std::int64_t>(head) * stride[1] +
                            static_cast<std::int64_t>(token) * stride[2];
    return data + at * static_cast<std::int64_t>(bytes_of(element));
  }
};

/// Is it [batch, heads, at least `tokens`, dim] of `element`? The error names `what` and the axis.
Status check_tensor(const Tensor& tensor, const char* what, std::size_t batch, std::size_t heads,
                    std::size_t tokens, std::size_t dim, Element element);

const char* name(Element element);

}  // namespace lehr::contents
