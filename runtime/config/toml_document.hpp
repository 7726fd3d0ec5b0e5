// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.hpp"

namespace lehr::config {

/// The values a number may take, both ends included.
struct Range {
  double minimum = 0;
  double maximum = std::numeric_limits<double>::max();
};

/// One table of a parsed document. Getters answer "absent" for a missing key and an error, with
/// file, line, column, key and what was expected, for a wrong one. Each getter also notes its key
/// as known: finish() refuses the keys that nobody asked for. Copies share the document, which
/// lives as long as they do.
class TomlTable {
 public:
  Result<std::optional<double>> number(std::string_view key, Range range);
  Result<std::optional<std::uint64_t>> integer(std::string_view key, std::uint64_t minimum,
                                               std::uint64_t maximum);
  Result<std::optional<bool>> boolean(std::string_view key);
  Result<std::optional<std::string>> text(std::string_view key);
  /// A whole number of bytes, or text such as "24 GiB" or "141 GB".
  Result<std::optional<std::uint64_t>> bytes(std::string_view key, std::uint64_t minimum);
  Result<std::optional<std::vector<double>>> numbers(std::string_view key, Range range);
  Result<std::optional<std::vector<std::string>>> texts(std::string_view key);
  /// An array of arrays of numbers, all rows of the same length.
  Result<std::optional<std::vector<std::vector<double>>>> grid(std::string_view key, Range range);
  Result<std::optional<TomlTable>> table(std::string_view key);
  Result<std::vector<TomlTable>> tables(std::string_view key);

  /// Every key of the table, by name; asking notes none of them as known.
  std::vector<std::string> keys() const;
  bool has(std::string_view key) const;
  /// A number, text or boolean as text, for free-form tables.
  Result<std::string> fact(std::string_view key);

  /// Refuses keys that no getter asked for; the error lists the known ones.
  Status finish() const;

  /// An error at the key (or at the table, where the key is missing): "file:line:column: path:
  /// ...".
  Error error(std::string_view key, std::string_view message) const;

 private:
  friend Result<TomlTable> parse_toml(std::string_view text, std::string_view file);
  struct Document;

  TomlTable(std::shared_ptr<const Document> document, const void* node, std::string path)
      : document_(std::move(document)), node_(node), path_(std::move(path)) {}

  std::shared_ptr<const Document> document_;
  const void* node_;  // the parsed table; its type stays in the .cpp
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

/// The root table of `text`; `file` only names it in errors.
Result<TomlTable> parse_toml(std::string_view text, std::string_view file);

/// The contents of a small text file, at most 1 MiB.
Result<std::string> read_text_file(const std::string& path);

}  // namespace lehr::config
