// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/request_trace.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/formats/file.hpp"

namespace lehr::formats {
namespace {

constexpr std::size_t kMaxLine = std::size_t{16} << 20;
constexpr std::uint64_t kMaxLength = 1U << 30;  // tokens of one request
constexpr std::size_t kMaxDepth = 32;           // of keys that are skipped

enum Key : unsigned { kTimestamp, kInput, kOutput, kHashIds, kSession, kBlockSize, kOther };
constexpr std::string_view kNames[] = {"timestamp", "input_length", "output_length",
                                       "hash_ids",  "session",      "block_size"};

/// Fills one Request from one line; keys that are not ours are passed over at any depth up to
/// kMaxDepth.
class LineReader {
 public:
  LineReader(Request& request, std::vector<std::uint64_t>& ids) : request_(request), ids_(ids) {}

  std::string problem;
  bool seen(Key key) const { return (seen_ & (1U << key)) != 0; }

  bool null() { return skipped() || unexpected("null"); }
  bool boolean(bool /*value*/) { return skipped() || unexpected("a boolean"); }
  bool string(std::string& /*value*/) { return skipped() || unexpected("a string"); }
  bool binary(std::vector<std::uint8_t>& /*value*/) { return unexpected("binary data"); }

  bool number_integer(std::int64_t value) { return skipped() || unexpected(std::to_string(value)); }

  bool number_unsigned(std::uint64_t value) {
    if (skipped()) return true;
    if (depth_ == 2) {
      ids_.push_back(value);
      return true;
    }
    switch (key_) {
      case kTimestamp:
        request_.timestamp_ms = static_cast<double>(value);
        return true;
      case kInput:
        return store(request_.input_length, value, 0, kMaxLength);
      case kOutput:
        return store(request_.output_length, value, 0, kMaxLength);
      case kBlockSize:
        return store(request_.block_size, value, 1, kMaxLength);
      case kSession:
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          return unexpected(std::to_string(value));
        }
        request_.session = static_cast<std::int64_t>(value);
        return true;
      default:
        return unexpected("a number");
    }
  }

  bool number_float(double value, const std::string& text) {
    if (skipped()) return true;
    if (depth_ == 1 && key_ == kTimestamp && std::isfinite(value) && value >= 0) {
      request_.timestamp_ms = value;
      return true;
    }
    return unexpected(text);
  }

  bool start_object(std::size_t /*size*/) {
    if (depth_ > 0 && !skipped()) return unexpected("an object");
    return deeper();
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) {
    if (depth_ == 0) return fail("is a list, expected an object");
    if (!skipped() && (key_ != kHashIds || depth_ != 1)) return unexpected("a list");
    return deeper();
  }
  bool end_array() {
    --depth_;
    return true;
  }

  bool key(std::string& value) {
    if (depth_ != 1) return true;
    const auto* found = std::find(std::begin(kNames), std::end(kNames), value);
    key_ = static_cast<Key>(found - std::begin(kNames));
    if (key_ == kOther) return true;
    if (seen(key_)) return fail(fmt::format("duplicate key '{}'", value));
    seen_ |= 1U << key_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) {
    const std::string text = error.what();
    const std::size_t colon = text.find(": ");
    return fail(fmt::format("column {}: not JSON: {}", position,
                            colon == std::string::npos ? text : text.substr(colon + 2)));
  }

 private:
  bool skipped() const { return depth_ > 0 && key_ == kOther; }

  bool deeper() {
    if (++depth_ > kMaxDepth) return fail(fmt::format("nested deeper than {} levels", kMaxDepth));
    return true;
  }

  bool store(std::uint32_t& field, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    if (value < least || value > most) return unexpected(std::to_string(value));
    field = static_cast<std::uint32_t>(value);
    return true;
  }

  bool unexpected(std::string_view found) {
    if (depth_ == 0) return fail(fmt::format("is {}, expected an object", found));
    const std::string where = depth_ == 2
                                  ? fmt::format("{}[{}]", kNames[key_], ids_.size() - start_)
                                  : std::string(kNames[key_]);
    return fail(fmt::format("{} is {}, expected {}", where, found, wanted()));
  }

  std::string wanted() const {
    switch (key_) {
      case kTimestamp:
        return "milliseconds from 0";
      case kHashIds:
        return depth_ == 2 ? "a whole number from 0 to 2^64-1" : "a list of block ids";
      case kSession:
        return "a whole number from 0 to 2^63-1";
      case kBlockSize:
        return fmt::format("a whole number from 1 to {}", kMaxLength);
      default:
        return fmt::format("a whole number from 0 to {}", kMaxLength);
    }
  }

  bool fail(std::string what) {
    problem = std::move(what);
    return false;
  }

  Request& request_;
  std::vector<std::uint64_t>& ids_;
  std::size_t start_ = ids_.size();
  std::size_t depth_ = 0;
  Key key_ = kOther;
  unsigned seen_ = 0;
};

Status read_line(std::string_view line, Request& request, std::vector<std::uint64_t>& ids) {
  if (line.size() > kMaxLine) {
    return corrupt(fmt::format("{} bytes, longer than {}", line.size(), kMaxLine));
  }
  // The parser would take a zero byte for the end of its input, and not look at what follows.
  if (const std::size_t zero = line.find('\0'); zero != std::string_view::npos) {
    return corrupt(fmt::format("column {}: a zero byte, expected JSON", zero + 1));
  }
  request.first_block = ids.size();
  LineReader reader(request, ids);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &reader)) return corrupt(reader.problem);
  for (const Key key : {kTimestamp, kInput, kOutput, kHashIds}) {
    if (!reader.seen(key)) return corrupt(fmt::format("no '{}'", kNames[key]));
  }
  const std::size_t count = ids.size() - request.first_block;
  request.block_count = static_cast<std::uint32_t>(count);
  // A block holds at least one token, and where its size is known the prompt cannot have more
  // blocks than it fills.
  const std::uint64_t size = std::max<std::uint64_t>(1, request.block_size);
  const std::uint64_t most = (request.input_length + size - 1) / size;
  if (count > most) {
    return corrupt(fmt::format("hash_ids has {} blocks, expected at most {} for input_length {}",
                               count, most, request.input_length));
  }
  return {};
}

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<RequestTrace> RequestTrace::parse(std::string_view text, std::string_view name) {
  RequestTrace out;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (blank(line)) continue;
    auto status = read_line(line, out.requests_.emplace_back(), out.hash_ids_);
    if (!status) {
      Error error = std::move(status).error();
      error.what = fmt::format("{}:{}: {}", name, number, error.what);
      return error;
    }
  }
  if (out.requests_.empty()) {
    return corrupt(fmt::format("{}: no requests, expected one JSON object a line", name));
  }
  return out;
}

Result<RequestTrace> RequestTrace::open(const std::filesystem::path& path, Bytes limit) {
  LEHR_ASSIGN(const FileContents contents, FileContents::open(path, limit));
  const auto bytes = contents.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace lehr::formats
