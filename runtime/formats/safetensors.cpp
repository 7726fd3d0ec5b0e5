// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace lehr::formats {
namespace {

constexpr std::uint64_t kMaxHeader = 16 * kMiB;
constexpr std::size_t kMaxTensors = 65536;
constexpr std::size_t kMaxRank = 16;
constexpr std::size_t kLengthField = 8;

struct TypeInfo {
  TensorType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array kTypes = {
    TypeInfo{TensorType::kBool, "BOOL", 1},      TypeInfo{TensorType::kU8, "U8", 1},
    TypeInfo{TensorType::kI8, "I8", 1},          TypeInfo{TensorType::kF8E5M2, "F8_E5M2", 1},
    TypeInfo{TensorType::kF8E4M3, "F8_E4M3", 1}, TypeInfo{TensorType::kI16, "I16", 2},
    TypeInfo{TensorType::kU16, "U16", 2},        TypeInfo{TensorType::kF16, "F16", 2},
    TypeInfo{TensorType::kBF16, "BF16", 2},      TypeInfo{TensorType::kI32, "I32", 4},
    TypeInfo{TensorType::kU32, "U32", 4},        TypeInfo{TensorType::kF32, "F32", 4},
    TypeInfo{TensorType::kF64, "F64", 8},        TypeInfo{TensorType::kI64, "I64", 8},
    TypeInfo{TensorType::kU64, "U64", 8},
};

const TypeInfo& info(TensorType type) { return kTypes[static_cast<std::size_t>(type)]; }

/// What the header says of a tensor, before it is believed.
struct Entry {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_type = false;
  bool has_shape = false;
  bool has_offsets = false;
};

/// Takes the header apart as it is read. Nothing deeper than tensor -> list is accepted, so a
/// hostile document costs no more memory than its own length.
class HeaderReader {
 public:
  std::vector<Entry> entries;
  Metadata metadata;
  std::string problem;

  // nlohmann's SAX interface; false stops the parser.
  bool null() { return unexpected("null"); }
  bool boolean(bool /*value*/) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t /*value*/) { return unexpected("a negative number"); }
  bool number_float(double /*value*/, const std::string& text) { return unexpected(text); }
  bool binary(std::vector<std::uint8_t>& /*value*/) { return unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (where_ == Where::kShape) {
      if (entries.back().shape.size() == kMaxRank) {
        return fail(fmt::format("tensor '{}': more than {} dimensions", tensor_name(), kMaxRank));
      }
      entries.back().shape.push_back(value);
      return true;
    }
    if (where_ == Where::kOffsets) {
      if (entries.back().offsets.size() == 2) {
        return fail(
            fmt::format("tensor '{}': data_offsets has more than 2 numbers", tensor_name()));
      }
      entries.back().offsets.push_back(value);
      return true;
    }
    return unexpected("a number");
  }

  bool string(std::string& value) {
    if (where_ == Where::kMetadata) {
      metadata.emplace_back(key_, std::move(value));
      return true;
    }
    if (where_ == Where::kTensor && key_ == "dtype") {
      entries.back().type = std::move(value);
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t /*size*/) {
    if (where_ == Where::kStart) {
      where_ = Where::kTop;
      return true;
    }
    if (where_ != Where::kTop) return unexpected("an object");
    keys_.clear();
    if (key_ == "__metadata__") {
      where_ = Where::kMetadata;
      return true;
    }
    if (entries.size() == kMaxTensors)
      return fail(fmt::format("more than {} tensors", kMaxTensors));
    entries.emplace_back().name = key_;
    where_ = Where::kTensor;
    return true;
  }

  bool end_object() {
    where_ = where_ == Where::kTop ? Where::kEnd : Where::kTop;
    return true;
  }

  bool key(std::string& value) {
    auto& seen = where_ == Where::kTop ? names_ : keys_;
    if (!seen.insert(value).second) return fail(fmt::format("duplicate key '{}'", value));
    key_ = value;
    if (where_ != Where::kTensor) return true;
    Entry& entry = entries.back();
    if (value == "dtype") return entry.has_type = true;
    if (value == "shape") return entry.has_shape = true;
    if (value == "data_offsets") return entry.has_offsets = true;
    return fail(fmt::format("tensor '{}': unknown key '{}'", tensor_name(), value));
  }

  bool start_array(std::size_t /*size*/) {
    if (where_ == Where::kTensor && key_ == "shape") {
      where_ = Where::kShape;
      return true;
    }
    if (where_ == Where::kTensor && key_ == "data_offsets") {
      where_ = Where::kOffsets;
      return true;
    }
    return unexpected("a list");
  }

  bool end_array() {
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) {
    // The library's text repeats the position in its own counting; ours counts from the file's
    // start.
    const std::string text = error.what();
    const std::size_t colon = text.find(": ");
    return fail(fmt::format("byte {}: not JSON: {}", kLengthField + position,
                            colon == std::string::npos ? text : text.substr(colon + 2)));
  }

 private:
  enum class Where : std::uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  const std::string& tensor_name() const { return entries.back().name; }

  bool fail(std::string what) {
    problem = std::move(what);
    return false;
  }

  bool unexpected(std::string_view found) {
    switch (where_) {
      case Where::kStart:
      case Where::kEnd:
        return fail(fmt::format("the header is {}, expected an object", found));
      case Where::kTop:
        return fail(fmt::format("'{}' is {}, expected an object", key_, found));
      case Where::kMetadata:
        return fail(fmt::format("__metadata__ '{}' is {}, expected a string", key_, found));
      case Where::kTensor:
        return fail(fmt::format("tensor '{}': {} is {}, expected {}", tensor_name(), key_, found,
                                key_ == "dtype" ? "a string" : "a list of numbers"));
      case Where::kShape:
      case Where::kOffsets:
        return fail(fmt::format("tensor '{}': {} holds {}, expected whole numbers from 0 to 2^64-1",
                                tensor_name(), key_, found));
    }
    return fail("unreadable header");
  }

  Where where_ = Where::kStart;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> keys_;
};

const TypeInfo* find_type(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& t) { return t.name == name; });
  return found == kTypes.end() ? nullptr : &*found;
}

/// One entry against the data section; on success `tensor.data` is set.
Status check_entry(const Entry& entry, std::span<const std::byte> data, Bytes data_start,
                   Tensor& tensor) {
  const auto missing = [&](std::string_view key) {
    return corrupt(fmt::format("tensor '{}': no {}", entry.name, key));
  };
  if (!entry.has_type) return missing("dtype");
  if (!entry.has_shape) return missing("shape");
  if (!entry.has_offsets || entry.offsets.size() != 2) return missing("pair of data_offsets");
  const TypeInfo* type = find_type(entry.type);
  if (type == nullptr) {
    return corrupt(fmt::format("tensor '{}': unknown dtype '{}'", entry.name, entry.type));
  }
  tensor.name = entry.name;
  tensor.type = type->type;
  tensor.shape = entry.shape;
  LEHR_ASSIGN(const Bytes expected, tensor_bytes(tensor));
  const Bytes begin = entry.offsets[0];
  const Bytes end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return corrupt(fmt::format("tensor '{}': data_offsets [{},{}] outside the {} bytes of data",
                               entry.name, begin, end, data.size()),
                   end > data.size() ? Reason::kTruncated : Reason::kOutOfRange);
  }
  if (end - begin != expected) {
    return corrupt(fmt::format(
        "tensor '{}': {} bytes at data_offsets [{},{}], expected {} for {} {}", entry.name,
        end - begin, begin, end, expected, entry.type, shape_text(entry.shape)));
  }
  if ((data_start + begin) % type->bytes != 0) {
    return corrupt(fmt::format("tensor '{}': byte {} of the file is misaligned for {}", entry.name,
                               data_start + begin, entry.type));
  }
  tensor.data = data.subspan(begin, expected);
  return {};
}

/// Tensors must tile the data section: hidden bytes and shared bytes are both refused.
Status check_cover(const std::vector<Entry>& entries, Bytes data_size) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return entries[a].offsets < entries[b].offsets; });
  Bytes covered = 0;
  for (const std::size_t i : order) {
    const Entry& entry = entries[i];
    if (entry.offsets[0] != covered) {
      return corrupt(fmt::format("tensor '{}': starts at data byte {}, expected {} ({})",
                                 entry.name, entry.offsets[0], covered,
                                 entry.offsets[0] < covered ? "it overlaps another" : "a hole"));
    }
    covered = entry.offsets[1];
  }
  if (covered != data_size) {
    return corrupt(fmt::format("{} bytes of data follow the last tensor", data_size - covered));
  }
  return {};
}

Error prefixed(std::string_view name, Error error) {
  error.what = fmt::format("{}: {}", name, error.what);
  return error;
}

Result<Safetensors> parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthField + 2) {
    return corrupt(fmt::format("{} bytes, too short for a safetensors file", bytes.size()),
                   Reason::kTruncated);
  }
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > kMaxHeader) {
    return corrupt(
        fmt::format("byte 0: header of {} bytes, expected at most {} (not a safetensors "
                    "file?)",
                    header_size, kMaxHeader));
  }
  if (header_size > bytes.size() - kLengthField) {
    return corrupt(
        fmt::format("byte 0: header of {} bytes in a file of {}", header_size, bytes.size()),
        Reason::kTruncated);
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthField,
                                header_size);
  if (header.empty() || header.front() != '{') {
    return corrupt("byte 8: expected '{', the start of a safetensors header");
  }
  // The parser would take a zero byte for the end of its input, and not look at what follows.
  if (const std::size_t zero = header.find('\0'); zero != std::string_view::npos) {
    return corrupt(fmt::format("byte {}: a zero byte, expected JSON", kLengthField + zero));
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) {
    return corrupt(reader.problem);
  }

  const Bytes data_start = kLengthField + header_size;
  const auto data = bytes.subspan(data_start);
  Safetensors out;
  out.metadata = std::move(reader.metadata);
  out.tensors.resize(reader.entries.size());
  for (std::size_t i = 0; i < reader.entries.size(); ++i) {
    LEHR_TRY(check_entry(reader.entries[i], data, data_start, out.tensors[i]));
  }
  LEHR_TRY(check_cover(reader.entries, data.size()));
  return out;
}

}  // namespace

std::string_view to_string(TensorType type) { return info(type).name; }
std::size_t element_bytes(TensorType type) { return info(type).bytes; }

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

const Tensor* Safetensors::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Result<Bytes> tensor_bytes(const Tensor& tensor) {
  Bytes total = element_bytes(tensor.type);
  for (const std::uint64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(total, extent, &total)) {
      return corrupt(fmt::format("tensor '{}': the size of shape {} overflows 64 bits", tensor.name,
                                 shape_text(tensor.shape)),
                     Reason::kOutOfRange);
    }
  }
  return total;
}

Result<Safetensors> parse_safetensors(std::span<const std::byte> bytes, std::string_view name) {
  auto result = parse(bytes);
  if (!result) return prefixed(name, std::move(result).error());
  return result;
}

Result<std::string> safetensors_header(const Metadata& metadata, std::span<const Tensor> tensors) {
  using Json = nlohmann::ordered_json;
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& object = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) {
      if (object.contains(key)) return invalid(fmt::format("duplicate metadata key '{}'", key));
      object[key] = value;
    }
  }
  Bytes offset = 0;
  for (const Tensor& tensor : tensors) {
    if (header.contains(tensor.name)) {
      return invalid(fmt::format("tensor '{}': duplicate or reserved name", tensor.name));
    }
    LEHR_ASSIGN(const Bytes size, tensor_bytes(tensor));
    if (offset % element_bytes(tensor.type) != 0) {
      return invalid(fmt::format("tensor '{}': would start at data byte {}, misaligned for {}",
                                 tensor.name, offset, to_string(tensor.type)));
    }
    Bytes end = 0;
    if (__builtin_add_overflow(offset, size, &end)) {
      return invalid(fmt::format("tensor '{}': the file would pass 2^64 bytes", tensor.name));
    }
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    return invalid("a metadata key, value or tensor name is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader) return invalid("the header would be larger than readers accept");
  const std::uint64_t length = text.size();
  std::string out(kLengthField, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace lehr::formats
