// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::config {

/// A capacity as people write it: "24 GiB", "1000 pages", "25%". A share is resolved against a
/// total that only the user of the capacity knows (the machine's, or a replay's footprint).
struct Capacity {
  enum class Kind : std::uint8_t { kUnset, kBytes, kPages, kShare };

  Kind kind = Kind::kUnset;
  std::uint64_t count = 0;  ///< bytes or pages
  double share = 0;         ///< in (0, 1]

  bool set() const { return kind != Kind::kUnset; }
  /// In bytes. A share rounds down to whole pages; `total` 0 means that no total is known, and
  /// refuses it.
  Result<Bytes> resolve(Bytes total, Bytes page_bytes) const;
};

/// "4096", "24 GiB", "141 GB", "1.5 MiB": decimal and binary units, a blank before the unit
/// optional.
Result<Bytes> parse_bytes(std::string_view text);

/// parse_bytes, or "N pages", or "N%" with 0 < N <= 100.
Result<Capacity> parse_capacity(std::string_view text);

std::string to_text(const Capacity& capacity);

}  // namespace lehr::config
