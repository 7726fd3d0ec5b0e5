// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/result.hpp"

namespace lehr {

/// One settable number of a plug-in, with the range that configuration and tuning may use.
struct ParameterInfo {
  const char* name;
  const char* help;
  double fallback;
  double minimum;
  double maximum;
};

/// Values for a plug-in's parameters; those not named keep their default.
using Parameters = std::map<std::string, double, std::less<>>;

/// Fills in defaults, refuses unknown names and values outside their range.
inline Result<Parameters> resolve_parameters(std::string_view plugin,
                                             std::span<const ParameterInfo> schema,
                                             const Parameters& given) {
  Parameters out;
  for (const ParameterInfo& info : schema) out.emplace(info.name, info.fallback);
  for (const auto& [name, value] : given) {
    const ParameterInfo* found = nullptr;
    for (const ParameterInfo& info : schema) {
      if (name == info.name) found = &info;
    }
    if (found == nullptr) {
      return invalid(std::string(plugin) + " has no parameter '" + name + "'");
    }
    if (!(value >= found->minimum && value <= found->maximum)) {
      return invalid(std::string(plugin) + ": " + name + " = " + std::to_string(value) +
                     " is outside " + std::to_string(found->minimum) + " to " +
                     std::to_string(found->maximum));
    }
    out[name] = value;
  }
  return out;
}

}  // namespace lehr
