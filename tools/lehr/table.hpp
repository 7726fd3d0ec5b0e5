// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lehr::tools {

/// A plain table: first column left, the others right; columns as wide as their widest cell.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.50 GB", "12.0 kB": three digits, decimal units.
std::string human_bytes(double bytes);
/// "12.3 us", "1.50 ms".
std::string human_seconds(double seconds);

}  // namespace lehr::tools
