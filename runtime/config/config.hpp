// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/geometry.hpp"
#include "kernels/base/registry.hpp"
#include "kernels/base/result.hpp"
#include "runtime/config/quantity.hpp"

namespace lehr::config {

/// The runtime configuration: a field section_key for each line of config_keys.def ("top" is the
/// top of the file), with its default.
struct Config {
#define LEHR_KEY_WORD(section, key, fallback, words, help) std::string section##_##key = fallback;
#define LEHR_KEY_TEXT(section, key, fallback, help) std::string section##_##key = fallback;
#define LEHR_KEY_WHOLE(section, key, fallback, minimum, maximum, help) \
  std::uint64_t section##_##key = fallback;
#define LEHR_KEY_REAL(section, key, fallback, minimum, maximum, help) \
  double section##_##key = fallback;
#define LEHR_KEY_FLAG(section, key, fallback, help) bool section##_##key = fallback;
#define LEHR_KEY_BYTES(section, key, fallback, help) Bytes section##_##key = fallback;
#define LEHR_KEY_CAPACITY(section, key, help) Capacity section##_##key;
#include "runtime/config/config_keys.def"
#undef LEHR_KEY_WORD
#undef LEHR_KEY_TEXT
#undef LEHR_KEY_WHOLE
#undef LEHR_KEY_REAL
#undef LEHR_KEY_FLAG
#undef LEHR_KEY_BYTES
#undef LEHR_KEY_CAPACITY

  Parameters policy_parameters;  ///< [policy.parameters]: numbers by name; the policy checks them
  Parameters predictor_parameters;  ///< [predictor.parameters], likewise

  /// What [geometry] says; all zero where it is absent.
  KvGeometry geometry() const;
};

/// Reads a configuration; `file` names it in errors, which carry line, column, key and range.
Result<Config> parse_config(std::string_view text, std::string_view file);
Result<Config> read_config(const std::string& path);

/// Every key with its kind, range, default and help, as Markdown.
std::string config_reference();

}  // namespace lehr::config
