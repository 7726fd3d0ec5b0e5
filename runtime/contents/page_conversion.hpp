// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/dtype.hpp"
#include "kernels/base/result.hpp"
#include "runtime/contents/cpu_attend.hpp"

namespace lehr::contents {

/// Full pages between the form in which they are filled and a lower precision, as the kernels store
/// it (kernels/page_entry.hpp). Elements of 32 bits go by way of fp16, the
/// largest of which stands for what is beyond it. Not thread-safe.
class PageConversion {
 public:
  PageConversion(const PageShape& shape, DType to);

  /// Refuses shapes that the kernels do not convert.
  Status check() const;

  /// In place: `contents` holds a filled page, then the stored bytes and zeros.
  Status lower(std::byte* contents);
  /// What stored bytes hold: K [tokens][dim], then V.
  void widen(const std::byte* stored, float* out) const;
  /// The same as elements of the page's own type.
  void widen(const std::byte* stored, std::byte* out);

 private:
  PageShape shape_;
  DType to_;
  std::size_t count_;  ///< elements
  std::vector<float> values_;
  std::vector<std::byte> memory_;  ///< a 16-bit page and a stored one, aligned as kernels want it
};

}  // namespace lehr::contents
