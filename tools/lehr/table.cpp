// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/table.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace lehr::tools {

std::string Table::text() const {
  std::vector<std::size_t> width(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += c == 0 ? fmt::format("{:<{}}", row[c], width[c])
                     : fmt::format("  {:>{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

namespace {

std::string three_digits(double value, const char* unit) {
  const double size = std::fabs(value);
  const int places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, places, unit);
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : three_digits(bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  const double size = std::fabs(seconds);
  if (size == 0) return "0";
  if (size < 1e-3) return three_digits(seconds * 1e6, "us");
  if (size < 1) return three_digits(seconds * 1e3, "ms");
  return three_digits(seconds, "s");
}

}  // namespace lehr::tools
