// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "kernels/page_entry.hpp"

namespace lehr::runtime {

std::optional<PrecisionOptions> precision_of(std::string_view word, double mass) {
  for (const DType to : {DType::kE4m3, DType::kInt8}) {
    if (word == name(to)) return PrecisionOptions{to, mass};
  }
  return std::nullopt;
}

const char* precision_name(const std::optional<PrecisionOptions>& options) {
  return options ? name(options->to) : "none";
}

Result<Bytes> lowered_page_bytes(const PrecisionOptions& options, const KvGeometry& geometry,
                                 Bytes page_bytes) {
  if (!(options.mass >= 0 && options.mass <= 1)) {
    return invalid(fmt::format("precision: a share of mass of {}, expected 0 to 1", options.mass),
                   Reason::kOutOfRange);
  }
  if (element_bytes(options.to) != 1) {
    return invalid(
        fmt::format("precision: {} is no lower one, expected e4m3 or int8", name(options.to)));
  }
  if (options.to == DType::kInt8 && geometry.head_dim % 32 != 0) {
    return unsupported(fmt::format("precision: int8 has scales of 32 channels, head_dim is {}",
                                   geometry.head_dim));
  }
  const Bytes own = geometry.page_bytes();
  const Bytes stored =
      kernels::stored_page_bytes(options.to, geometry.page_tokens, geometry.head_dim);
  if (stored >= own) {
    return unsupported(
        fmt::format("precision: a page of {} bytes takes {} as {}", own, stored, name(options.to)));
  }
  if (page_bytes == own) return stored;
  const double share = static_cast<double>(stored) / static_cast<double>(own);
  return std::max<Bytes>(1, static_cast<Bytes>(share * static_cast<double>(page_bytes)));
}

}  // namespace lehr::runtime
