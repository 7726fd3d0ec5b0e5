// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/safetensors.hpp"

#include <string>

#include <catch2/catch.hpp>

#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::formats {
namespace {

using test::bytes_of;
using test::safetensors_file;

/// Keeps the bytes 8-byte aligned, as a mapping would.
Result<Safetensors> parse(const std::string& file) {
  static std::vector<std::uint64_t> aligned;
  aligned.assign(file.size() / 8 + 1, 0);
  std::memcpy(aligned.data(), file.data(), file.size());
  return parse_safetensors(std::as_bytes(std::span(aligned)).first(file.size()), "f");
}

std::string tensor(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets +
         "]}";
}

TEST_CASE("metadata and tensors come out in the header's order") {
  std::string header = R"({"__metadata__":{"k":"v","a":"\u00e9"},"t":)" +
                       tensor("I32", "2,1", "0,8") + R"(,"e":)" + tensor("U8", "0,5", "8,8") +
                       R"(,"b":)" + tensor("U8", "3", "8,11") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto file = parse(safetensors_file(header, "\x01" + std::string(7, '\0') + "xyz"));
  REQUIRE(file);
  CHECK((*file).metadata == Metadata{{"k", "v"}, {"a", "\xc3\xa9"}});
  REQUIRE((*file).tensors.size() == 3);
  const Tensor* t = (*file).find("t");
  REQUIRE(t != nullptr);
  CHECK(t->type == TensorType::kI32);
  CHECK(t->shape == std::vector<std::uint64_t>{2, 1});
  CHECK(t->data.size() == 8);
  CHECK(t->data[0] == std::byte{1});
  CHECK((*file).tensors[1].data.empty());
  CHECK((*file).tensors[2].data[2] == std::byte{'z'});
  CHECK((*file).find("nothing") == nullptr);
}

TEST_CASE("a scalar has one element") {
  CHECK(parse(safetensors_file(R"({"s":)" + tensor("U8", "", "0,1") + "}", "x")));
}

struct Bad {
  std::string header;
  std::string data;
  std::string message;  ///< part of the line that the reader must give
};

TEST_CASE("a broken header is refused with the place and what was expected") {
  // Each breaks one thing of {"t": U8 [2,3] at [0,6]} over six bytes of data, which is accepted:
  const std::string good = R"({"t":)" + tensor("U8", "2,3", "0,6") + "}";
  REQUIRE(parse(safetensors_file(good, "abcdef")));
  const std::string max = "18446744073709551615";
  const Bad bad = GENERATE_COPY(values<Bad>({
      {good, "abcde", "tensor 't': data_offsets [0,6] outside the 5 bytes of data"},
      {good, "abcdefg", "1 bytes of data follow the last tensor"},
      {R"({"t":)" + tensor("U8", "2,3", "0,5") + "}", "abcde",
       "tensor 't': 5 bytes at data_offsets [0,5], expected 6 for U8 [2,3]"},
      {R"({"t":)" + tensor("U8", "2,3", "6,0") + "}", "abcdef", "data_offsets [6,0] outside"},
      {R"({"t":)" + tensor("U8", "2,3", "0," + max) + "}", "abcdef", "outside the 6 bytes"},
      {R"({"t":)" + tensor("U8", "4294967296,4294967296", "0,6") + "}", "abcdef",
       "overflows 64 bits"},
      {R"({"t":)" + tensor("F64", max, "0,6") + "}", "abcdef", "overflows 64 bits"},
      {R"({"t":)" + tensor("U8", "-2,3", "0,6") + "}", "abcdef", "shape holds a negative number"},
      {R"({"t":)" + tensor("U8", "2.0,3", "0,6") + "}", "abcdef", "shape holds 2.0"},
      {R"({"t":)" + tensor("U8", "1e400,3", "0,6") + "}", "abcdef", "not JSON"},
      {R"({"t":)" + tensor("U8", "99999999999999999999999", "0,6") + "}", "abcdef", "shape holds"},
      {R"({"t":)" + tensor("U8", "[2],3", "0,6") + "}", "abcdef", "shape holds a list"},
      {R"({"t":)" + tensor("U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,6", "0,6") + "}", "abcdef",
       "more than 16 dimensions"},
      {R"({"t":)" + tensor("U8", "2,3", "0,3,6") + "}", "abcdef", "more than 2 numbers"},
      {R"({"t":)" + tensor("U8", "2,3", "0") + "}", "abcdef", "no pair of data_offsets"},
      {R"({"t":)" + tensor("U9", "2,3", "0,6") + "}", "abcdef", "tensor 't': unknown dtype 'U9'"},
      {R"({"t":{"dtype":8,"shape":[6],"data_offsets":[0,6]}})", "abcdef",
       "dtype is a number, expected a string"},
      {R"({"t":{"dtype":"U8","shape":6,"data_offsets":[0,6]}})", "abcdef", "shape is a number"},
      {R"({"t":{"shape":[6],"data_offsets":[0,6]}})", "abcdef", "tensor 't': no dtype"},
      {R"({"t":{"dtype":"U8","data_offsets":[0,6]}})", "abcdef", "tensor 't': no shape"},
      {R"({"t":{"dtype":"U8","shape":[6]}})", "abcdef", "tensor 't': no pair of data_offsets"},
      {R"({"t":{"dtype":"U8","shape":[6],"data_offsets":[0,6],"x":1}})", "abcdef",
       "unknown key 'x'"},
      {R"({"t":{"dtype":"U8","dtype":"U8","shape":[6],"data_offsets":[0,6]}})", "abcdef",
       "duplicate key 'dtype'"},
      {R"({"t":)" + tensor("U8", "3", "0,3") + R"(,"t":)" + tensor("U8", "3", "3,6") + "}",
       "abcdef", "duplicate key 't'"},
      {R"({"t":)" + tensor("U8", "4", "0,4") + R"(,"u":)" + tensor("U8", "4", "2,6") + "}",
       "abcdef", "tensor 'u': starts at data byte 2, expected 4 (it overlaps another)"},
      {R"({"t":)" + tensor("U8", "2", "0,2") + R"(,"u":)" + tensor("U8", "3", "3,6") + "}",
       "abcdef", "tensor 'u': starts at data byte 3, expected 2 (a hole)"},
      {R"({"t":)" + tensor("U8", "1", "0,1") + R"(,"u":)" + tensor("U8", "5", "1,6") + R"(,"v":)" +
           tensor("F16", "0", "3,3") + "}",
       "abcdef", "tensor 'v'"},
      {R"({"t":3})", "", "'t' is a number, expected an object"},
      {R"({"t":null})", "", "'t' is null"},
      {R"({"t":[1]})", "", "'t' is a list"},
      {R"({"t":{"dtype":{}}})", "", "dtype is an object"},
      {R"({"__metadata__":{"a":1}})", "", "__metadata__ 'a' is a number, expected a string"},
      {R"({"__metadata__":{"a":{}}})", "", "__metadata__ 'a' is an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "", "duplicate key 'a'"},
      {"{\"__metadata__\":{\"a\":\"\xff\"}}", "", "not JSON"},
      {R"({"a")", "", "not JSON"},
      {R"({} {})", "", "not JSON"},
      {std::string("{}") + '\0' + "not looked at", "", "byte 10: a zero byte, expected JSON"},
      {R"({"t":)" + std::string(1, '\0') + "}", "", "byte 13: a zero byte, expected JSON"},
      {"[]      ", "", "byte 8: expected '{'"},
      {std::string(100000, '{'), "", "not JSON"},
      {R"({"t":{"dtype":"U8","shape":)" + std::string(100000, '[') + "}}", "",
       "shape holds a list"},
  }));
  CAPTURE(bad.header.substr(0, 200));
  const auto file = parse(safetensors_file(bad.header, bad.data));
  REQUIRE_FALSE(file);
  CAPTURE(file.error().what);
  CHECK(file.error().code == Code::kCorrupt);
  CHECK(file.error().what.find("f: ") == 0);
  CHECK(file.error().what.find(bad.message) != std::string::npos);
  CHECK(file.error().what.find('\n') == std::string::npos);
}

TEST_CASE("a wide type at an odd place is misaligned") {
  // One header byte more or less moves the data by one.
  std::string header = R"({"t":)" + tensor("I32", "1", "0,4") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  REQUIRE(parse(safetensors_file(header, "abcd")));
  const auto file = parse(safetensors_file(header + " ", "abcd"));
  REQUIRE_FALSE(file);
  CHECK(file.error().what.find("misaligned for I32") != std::string::npos);
}

TEST_CASE("a file is refused at every length but its own") {
  const std::string whole =
      safetensors_file(R"({"t":)" + tensor("U8", "2,3", "0,6") + "}", "abcdef");
  REQUIRE(parse(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_FALSE(parse(whole.substr(0, length)));
  }
}

TEST_CASE("a header length that lies is refused before it is used") {
  std::string file = safetensors_file("{}", "");
  REQUIRE(parse(file));
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{1} << 24, ~std::uint64_t{0}, std::uint64_t{0}}) {
    std::memcpy(file.data(), &length, sizeof length);
    CHECK_FALSE(parse(file));
  }
}

TEST_CASE("what is written is what is read") {
  const std::vector<std::uint32_t> wide = {1, 2, 3};
  const std::string narrow = "hello";
  const std::vector<Tensor> tensors = {{"w", TensorType::kU32, {3}, std::as_bytes(std::span(wide))},
                                       {"n \"quoted\"", TensorType::kU8, {5}, bytes_of(narrow)}};
  const Metadata metadata = {{"z", "first"}, {"a", "caf\xc3\xa9\n"}};
  const auto header = safetensors_header(metadata, tensors);
  REQUIRE(header);
  CHECK((*header).size() % 8 == 0);
  const auto file =
      parse(*header + std::string(reinterpret_cast<const char*>(wide.data()), 12) + narrow);
  REQUIRE(file);
  CHECK((*file).metadata == metadata);
  REQUIRE((*file).tensors.size() == 2);
  CHECK((*file).tensors[0].name == "w");
  CHECK((*file).tensors[0].shape == std::vector<std::uint64_t>{3});
  CHECK((*file).tensors[1].data.size() == 5);
}

TEST_CASE("what could not be read back is not written") {
  const Tensor t = {"t", TensorType::kU8, {3}, {}};
  const Tensor wide = {"w", TensorType::kF32, {1}, {}};
  const Tensor huge = {"h", TensorType::kF64, {~std::uint64_t{0}}, {}};
  CHECK(safetensors_header({}, std::vector<Tensor>{t}));
  CHECK_FALSE(safetensors_header({}, std::vector<Tensor>{t, t}));
  CHECK_FALSE(safetensors_header({}, std::vector<Tensor>{t, wide}));  // would start at byte 3
  CHECK_FALSE(safetensors_header({}, std::vector<Tensor>{huge}));
  CHECK_FALSE(safetensors_header({{"a", "1"}, {"a", "2"}}, {}));
  CHECK_FALSE(safetensors_header({{"a", "\xff"}}, {}));
  CHECK_FALSE(safetensors_header({{"a", "b"}},
                                 std::vector<Tensor>{{"__metadata__", TensorType::kU8, {1}, {}}}));
}

}  // namespace
}  // namespace lehr::formats
