// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "kernels/base/dtype.hpp"
#include "kernels/base/geometry.hpp"
#include "kernels/base/result.hpp"

namespace lehr::runtime {

/// Pages may be lowered: converted, once and for good, to a form of one byte an element. A page has
/// one precision at a time, in whatever tier it lies, so that where it lies never shows in a
/// result. Slots keep a full page's size: what is saved is link time and bytes read from HBM.
struct PrecisionOptions {
  DType to = DType::kE4m3;  ///< or kInt8
  /// Share of a step's softmax mass that placement may expect on lowered pages, in [0, 1].
  /// Attention is known only when it has come: what a step really had there is in its report.
  double mass = 0.02;
};

/// By the configuration's words: "none", "e4m3" or "int8". What is none of them is none.
std::optional<PrecisionOptions> precision_of(std::string_view word, double mass);
/// And back.
const char* precision_name(const std::optional<PrecisionOptions>& options);

/// Bytes of a lowered page of this shape (kernels/page_entry.hpp). Of an imposed `page_bytes` it is
/// the same share as of the geometry's own. Refuses a share out of range, a format that is not a
/// lower one, and shapes that it cannot hold.
Result<Bytes> lowered_page_bytes(const PrecisionOptions& options, const KvGeometry& geometry,
                                 Bytes page_bytes);

}  // namespace lehr::runtime
