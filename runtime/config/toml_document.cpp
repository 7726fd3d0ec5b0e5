// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/toml_document.hpp"

#include <cmath>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

// Header-only and without exceptions: Debian's shared library has the throwing form only.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "runtime/config/quantity.hpp"

namespace lehr::config {

struct TomlTable::Document {
  std::string file;
  toml::table root;
};

namespace {

constexpr std::size_t kMostText = std::size_t{1} << 20;

const toml::table& as_table(const void* node) { return *static_cast<const toml::table*>(node); }

std::string_view kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "text";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string range_text(Range range) {
  if (range.maximum == std::numeric_limits<double>::max()) {
    return fmt::format("a number of at least {}", range.minimum);
  }
  return fmt::format("a number from {} to {}", range.minimum, range.maximum);
}

std::optional<double> number_of(const toml::node& node) {
  if (const auto* whole = node.as_integer()) return static_cast<double>(whole->get());
  if (const auto* real = node.as_floating_point()) return real->get();
  return std::nullopt;
}

std::string found_text(const toml::node& node) {
  if (const auto value = number_of(node)) return fmt::format("{}", *value);
  if (const auto* text = node.as_string()) return fmt::format("\"{:.40}\"", text->get());
  return std::string(kind_of(node));
}

bool in_range(double value, Range range) {
  return std::isfinite(value) && value >= range.minimum && value <= range.maximum;
}

std::string position(const std::string& file, const toml::source_region& source) {
  return fmt::format("{}:{}:{}", file, source.begin.line, source.begin.column);
}

/// Walks over the text outside of strings and comments, to know how deep keys and brackets nest
/// before anything is built: the parser bounds brackets only, and a document as deep as a key with
/// 100,000 dots could not be destroyed without as many stack frames.
class NestingCheck {
 public:
  explicit NestingCheck(std::string_view text) : text_(text) {}

  /// The line (from 1) at which it nests too deep, or 0.
  std::size_t too_deep() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      ++at_;
      if (c == '.') {
        ++dots_;
      } else if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
        dots_ = 0;
      }
      if (c == '[' || c == '{') ++open_;
      if ((c == ']' || c == '}') && open_ > 0) --open_;
      if (c == '\n') ++line_;
      if (dots_ > kMostDots || open_ > kMostOpen) return line_;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kMostDots = 8;
  static constexpr std::size_t kMostOpen = 16;

  bool at_triple(char quote) const {
    return text_.size() - at_ >= 3 && text_[at_] == quote && text_[at_ + 1] == quote &&
           text_[at_ + 2] == quote;
  }

  void skip_string(char quote) {
    const bool triple = at_triple(quote);
    at_ += triple ? 3 : 1;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        if (!triple) return;  // not TOML: the parser will say so, here
        ++line_;
      } else if (c == '\\' && quote == '"') {
        if (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == quote && !triple) {
        ++at_;
        return;
      } else if (triple && at_triple(quote)) {
        at_ += 3;
        for (int more = 0; more < 2 && at_ < text_.size() && text_[at_] == quote; ++more) ++at_;
        return;
      }
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t dots_ = 0;
  std::size_t open_ = 0;
};

}  // namespace

Result<TomlTable> parse_toml(std::string_view text, std::string_view file) {
  if (text.size() > kMostText) {
    return invalid(fmt::format("{}: {} bytes, expected at most {}", file, text.size(), kMostText));
  }
  if (const std::size_t line = NestingCheck(text).too_deep(); line != 0) {
    return invalid(
        fmt::format("{}:{}: keys or brackets nest deeper than any known ones", file, line));
  }
  toml::parse_result parsed = toml::parse(text, std::string(file));
  if (!parsed) {
    const toml::parse_error& failure = parsed.error();
    return invalid(fmt::format("{}: not valid TOML: {}",
                               position(std::string(file), failure.source()),
                               failure.description()));
  }
  auto document = std::make_shared<TomlTable::Document>();
  document->file = file;
  document->root = std::move(parsed).table();
  const void* root = &document->root;
  return TomlTable(std::move(document), root, "");
}

Error TomlTable::error(std::string_view key, std::string_view message) const {
  const toml::table& table = as_table(node_);
  const auto found = key.empty() ? table.end() : table.find(key);
  toml::source_region source = table.source();
  if (found != table.end()) source = found->first.source();
  const std::string name =
      key.empty() ? path_ : (path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
  // The root table has no place of its own: a missing key is then reported at the file's start.
  if (source.begin.line == 0) source.begin = {1, 1};
  return invalid(fmt::format("{}: {}{}{}", position(document_->file, source), name,
                             name.empty() ? "" : ": ", message));
}

Result<std::optional<double>> TomlTable::number(std::string_view key, Range range) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<double>();
  const std::optional<double> value = number_of(*node);
  if (!value || !in_range(*value, range)) {
    return error(key, fmt::format("expected {}, found {}", range_text(range), found_text(*node)));
  }
  return value;
}

Result<std::optional<std::uint64_t>> TomlTable::integer(std::string_view key, std::uint64_t minimum,
                                                        std::uint64_t maximum) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::uint64_t>();
  const auto* value = node->as_integer();
  if (value == nullptr || value->get() < 0 || static_cast<std::uint64_t>(value->get()) < minimum ||
      static_cast<std::uint64_t>(value->get()) > maximum) {
    return error(key, fmt::format("expected a whole number from {} to {}, found {}", minimum,
                                  maximum, found_text(*node)));
  }
  return std::optional<std::uint64_t>(static_cast<std::uint64_t>(value->get()));
}

Result<std::optional<bool>> TomlTable::boolean(std::string_view key) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<bool>();
  if (const auto* value = node->as_boolean()) return std::optional<bool>(value->get());
  return error(key, fmt::format("expected true or false, found {}", found_text(*node)));
}

Result<std::optional<std::string>> TomlTable::text(std::string_view key) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::string>();
  if (const auto* value = node->as_string()) return std::optional<std::string>(value->get());
  return error(key, fmt::format("expected text, found {}", found_text(*node)));
}

Result<std::optional<std::uint64_t>> TomlTable::bytes(std::string_view key, std::uint64_t minimum) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::uint64_t>();
  std::optional<std::uint64_t> value;
  if (const auto* whole = node->as_integer(); whole != nullptr && whole->get() >= 0) {
    value = static_cast<std::uint64_t>(whole->get());
  } else if (const auto* text = node->as_string()) {
    auto parsed = parse_bytes(text->get());
    if (!parsed) return error(key, parsed.error().what);
    value = *parsed;
  }
  if (!value || *value < minimum) {
    return error(key,
                 fmt::format("expected at least {} bytes, as a number or text like \"24 GiB\", "
                             "found {}",
                             minimum, found_text(*node)));
  }
  return value;
}

Result<std::optional<std::vector<double>>> TomlTable::numbers(std::string_view key, Range range) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::vector<double>>();
  const toml::array* array = node->as_array();
  if (array == nullptr || array->empty()) {
    return error(key, fmt::format("expected an array of numbers, found {}", found_text(*node)));
  }
  std::vector<double> out;
  for (const toml::node& item : *array) {
    const std::optional<double> value = number_of(item);
    if (!value || !in_range(*value, range)) {
      return error(key, fmt::format("item {}: expected {}, found {}", out.size() + 1,
                                    range_text(range), found_text(item)));
    }
    out.push_back(*value);
  }
  return std::optional<std::vector<double>>(std::move(out));
}

Result<std::optional<std::vector<std::string>>> TomlTable::texts(std::string_view key) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::vector<std::string>>();
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    return error(key, fmt::format("expected an array of texts, found {}", found_text(*node)));
  }
  std::vector<std::string> out;
  for (const toml::node& item : *array) {
    const auto* text = item.as_string();
    if (text == nullptr) {
      return error(
          key, fmt::format("item {}: expected text, found {}", out.size() + 1, found_text(item)));
    }
    out.push_back(text->get());
  }
  return std::optional<std::vector<std::string>>(std::move(out));
}

Result<std::optional<std::vector<std::vector<double>>>> TomlTable::grid(std::string_view key,
                                                                        Range range) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<std::vector<std::vector<double>>>();
  const toml::array* rows = node->as_array();
  if (rows == nullptr || rows->empty()) {
    return error(key,
                 fmt::format("expected an array of rows of numbers, found {}", found_text(*node)));
  }
  std::vector<std::vector<double>> out;
  for (const toml::node& row_node : *rows) {
    const toml::array* row = row_node.as_array();
    const std::string where = fmt::format("row {}", out.size() + 1);
    if (row == nullptr || row->empty()) {
      return error(key, fmt::format("{}: expected an array of numbers, found {}", where,
                                    found_text(row_node)));
    }
    if (!out.empty() && row->size() != out.front().size()) {
      return error(key, fmt::format("{}: expected {} numbers, found {}", where, out.front().size(),
                                    row->size()));
    }
    out.emplace_back();
    for (const toml::node& item : *row) {
      const std::optional<double> value = number_of(item);
      if (!value || !in_range(*value, range)) {
        return error(key, fmt::format("{}, item {}: expected {}, found {}", where,
                                      out.back().size() + 1, range_text(range), found_text(item)));
      }
      out.back().push_back(*value);
    }
  }
  return std::optional<std::vector<std::vector<double>>>(std::move(out));
}

Result<std::optional<TomlTable>> TomlTable::table(std::string_view key) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::optional<TomlTable>();
  const toml::table* table = node->as_table();
  if (table == nullptr) {
    return error(key, fmt::format("expected a table, found {}", found_text(*node)));
  }
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return std::optional<TomlTable>(TomlTable(document_, table, path));
}

Result<std::vector<TomlTable>> TomlTable::tables(std::string_view key) {
  known_.emplace(key);
  std::vector<TomlTable> out;
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    return error(key, fmt::format("expected tables [[{}]], found {}", key, found_text(*node)));
  }
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  for (const toml::node& item : *array) {
    const toml::table* table = item.as_table();
    if (table == nullptr) {
      return error(key, fmt::format("expected tables [[{}]], found {}", key, found_text(item)));
    }
    out.push_back(TomlTable(document_, table, fmt::format("{}[{}]", path, out.size())));
  }
  return out;
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, node] : as_table(node_)) out.emplace_back(key.str());
  return out;
}

bool TomlTable::has(std::string_view key) const { return as_table(node_).contains(key); }

Result<std::string> TomlTable::fact(std::string_view key) {
  known_.emplace(key);
  const toml::node* node = as_table(node_).get(key);
  if (node == nullptr) return std::string();
  if (const auto* text = node->as_string()) return text->get();
  if (const auto* flag = node->as_boolean()) return std::string(flag->get() ? "true" : "false");
  if (const auto value = number_of(*node)) return fmt::format("{}", *value);
  if (const auto* date = node->as_date()) {
    std::ostringstream out;
    out << date->get();
    return out.str();
  }
  return error(
      key, fmt::format("expected text, a number, a boolean or a date, found {}", kind_of(*node)));
}

Status TomlTable::finish() const {
  for (const auto& [key, node] : as_table(node_)) {
    if (known_.count(key.str()) != 0) continue;
    std::string names;
    for (const std::string& name : known_) names += (names.empty() ? "" : ", ") + name;
    return error(key.str(), fmt::format("unknown key, expected one of: {}", names));
  }
  return {};
}

Result<std::string> read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found(fmt::format("{}: cannot be opened for reading", path));
  std::string text(kMostText + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return io_error(fmt::format("{}: cannot be read", path));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMostText) {
    return invalid(fmt::format("{}: more than {} bytes", path, kMostText));
  }
  return text;
}

}  // namespace lehr::config
