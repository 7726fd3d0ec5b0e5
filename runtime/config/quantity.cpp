// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/quantity.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace lehr::config {

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 12> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"kB", 1e3},
                                       {"KiB", 1024.0},
                                       {"MiB", 1024.0 * 1024},
                                       {"GiB", 1024.0 * 1024 * 1024},
                                       {"TiB", 1024.0 * 1024 * 1024 * 1024},
                                       {"bytes", 1}}};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

struct NumberAndUnit {
  double value;
  std::string_view unit;
};

Result<NumberAndUnit> split(std::string_view text) {
  const std::string_view clean = trimmed(text);
  double value = 0;
  const auto [end, code] = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (code != std::errc() || !std::isfinite(value) || value < 0) {
    return invalid(fmt::format("'{}' does not start with a number", text));
  }
  return NumberAndUnit{value, trimmed(clean.substr(static_cast<std::size_t>(end - clean.data())))};
}

// Above this a double no longer counts single bytes; no machine has as much.
constexpr double kMostBytes = 9007199254740992.0;
/// 29 % of 100 pages are 29, though 0.29 is a little less as a binary fraction.
constexpr double kShareRounding = 1 + 4 * std::numeric_limits<double>::epsilon();

Result<std::uint64_t> whole(double value, std::string_view text) {
  if (value > kMostBytes) return invalid(fmt::format("'{}' is more than 2^53", text));
  if (value != std::floor(value)) {
    return invalid(fmt::format("'{}' is not a whole number", text));
  }
  return static_cast<std::uint64_t>(value);
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  LEHR_ASSIGN(const NumberAndUnit parts, split(text));
  for (const Unit& unit : kUnits) {
    if (parts.unit == unit.name) return whole(std::round(parts.value * unit.bytes), text);
  }
  return invalid(
      fmt::format("'{}': unknown unit '{}', expected B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", text,
                  parts.unit));
}

Result<Capacity> parse_capacity(std::string_view text) {
  LEHR_ASSIGN(const NumberAndUnit parts, split(text));
  Capacity capacity;
  if (parts.unit == "%") {
    if (!(parts.value > 0 && parts.value <= 100)) {
      return invalid(fmt::format("'{}': a share must be above 0% and at most 100%", text),
                     Reason::kOutOfRange);
    }
    capacity.kind = Capacity::Kind::kShare;
    capacity.share = parts.value / 100;
    return capacity;
  }
  if (parts.unit == "pages" || parts.unit == "page") {
    capacity.kind = Capacity::Kind::kPages;
    LEHR_ASSIGN(capacity.count, whole(parts.value, text));
    return capacity;
  }
  capacity.kind = Capacity::Kind::kBytes;
  LEHR_ASSIGN(capacity.count, parse_bytes(text));
  return capacity;
}

Result<Bytes> Capacity::resolve(Bytes total, Bytes page_bytes) const {
  switch (kind) {
    case Kind::kUnset:
      return invalid("no capacity given");
    case Kind::kBytes:
      return count;
    case Kind::kPages:
      if (page_bytes != 0 && count > static_cast<std::uint64_t>(kMostBytes) / page_bytes) {
        return invalid(
            fmt::format("{} pages of {} bytes are more than 2^53 bytes", count, page_bytes),
            Reason::kOutOfRange);
      }
      return count * page_bytes;
    case Kind::kShare:
      break;
  }
  if (total == 0) return invalid("a share was given, but the total it refers to is unknown");
  const double bytes =
      std::min(share * static_cast<double>(total) * kShareRounding, static_cast<double>(total));
  if (page_bytes == 0) return static_cast<Bytes>(bytes);
  return static_cast<Bytes>(bytes / static_cast<double>(page_bytes)) * page_bytes;
}

std::string to_text(const Capacity& capacity) {
  switch (capacity.kind) {
    case Capacity::Kind::kBytes:
      return fmt::format("{}", capacity.count);
    case Capacity::Kind::kPages:
      return fmt::format("{} pages", capacity.count);
    case Capacity::Kind::kShare:
      return fmt::format("{}%", capacity.share * 100);
    case Capacity::Kind::kUnset:
      break;
  }
  return "unset";
}

}  // namespace lehr::config
