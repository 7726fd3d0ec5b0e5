// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/request_trace.hpp"

#include <string>

#include <catch2/catch.hpp>

#include "runtime/formats/zstd.hpp"
#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::formats {
namespace {

const std::string kGood =
    R"({"timestamp": 5, "input_length": 1000, "output_length": 7, "hash_ids": [3, 18446744073709551615]})";

TEST_CASE("requests come out in file order, with what the line says and nothing else") {
  const auto trace = RequestTrace::parse(
      kGood + "\n\n  \r\n" +
          R"({"hash_ids":[],"timestamp":2.5,"input_length":0,"output_length":0,"session":4,"block_size":64,)" +
          R"("extra":{"deep":[1,{"hash_ids":[9]},null,true,-1,1.5,"x"]}})",
      "f");
  REQUIRE(trace);
  const auto requests = (*trace).requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].timestamp_ms == 5);
  CHECK(requests[0].input_length == 1000);
  CHECK(requests[0].output_length == 7);
  CHECK(requests[0].session == -1);
  CHECK(requests[0].block_size == 0);
  REQUIRE((*trace).blocks(requests[0]).size() == 2);
  CHECK((*trace).blocks(requests[0])[0] == 3);
  CHECK((*trace).blocks(requests[0])[1] == ~std::uint64_t{0});
  CHECK(requests[1].timestamp_ms == 2.5);
  CHECK(requests[1].session == 4);
  CHECK(requests[1].block_size == 64);
  CHECK((*trace).blocks(requests[1]).empty());
}

struct Bad {
  std::string line;
  std::string message;
};

TEST_CASE("a bad line is refused with file, line and what was expected") {
  REQUIRE(RequestTrace::parse(kGood + "\n" + kGood, "f"));
  const Bad bad = GENERATE(values<Bad>({
      {"hello", "column 1: not JSON"},
      {R"({"timestamp": 5)", "not JSON"},
      {"[1,2]", "is a list, expected an object"},
      {"3", "is a number, expected an object"},
      {"null", "is null, expected an object"},
      {"{}", "no 'timestamp'"},
      {R"({"timestamp":1,"input_length":9,"output_length":1})", "no 'hash_ids'"},
      {R"({"timestamp":1,"output_length":1,"hash_ids":[]})", "no 'input_length'"},
      {R"({"timestamp":1,"input_length":9,"hash_ids":[]})", "no 'output_length'"},
      {R"({"timestamp":-1,"input_length":9,"output_length":1,"hash_ids":[]})",
       "timestamp is -1, expected milliseconds from 0"},
      {R"({"timestamp":-0.5,"input_length":9,"output_length":1,"hash_ids":[]})",
       "timestamp is -0.5"},
      {R"({"timestamp":1e999,"input_length":9,"output_length":1,"hash_ids":[]})", "not JSON"},
      {R"({"timestamp":"1","input_length":9,"output_length":1,"hash_ids":[]})",
       "timestamp is a string"},
      {R"({"timestamp":1,"input_length":-9,"output_length":1,"hash_ids":[]})",
       "input_length is -9, expected a whole number from 0"},
      {R"({"timestamp":1,"input_length":9.5,"output_length":1,"hash_ids":[]})",
       "input_length is 9.5"},
      {R"({"timestamp":1,"input_length":9999999999,"output_length":1,"hash_ids":[]})",
       "input_length is 9999999999"},
      {R"({"timestamp":1,"input_length":9,"output_length":null,"hash_ids":[]})",
       "output_length is null"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":3})",
       "hash_ids is a number"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":{}})",
       "hash_ids is an object"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":[1,-2]})",
       "hash_ids[1] is -2"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":[18446744073709551616]})",
       "hash_ids[0] is 18446744073709551616, expected a whole number from 0 to 2^64-1"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":["a"]})",
       "hash_ids[0] is a string"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"hash_ids":[[1]]})",
       "hash_ids[0] is a list"},
      {R"({"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[1,2,3]})",
       "hash_ids has 3 blocks, expected at most 2"},
      {R"({"timestamp":1,"input_length":65,"output_length":1,"block_size":64,"hash_ids":[1,2,3]})",
       "hash_ids has 3 blocks, expected at most 2"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"block_size":0,"hash_ids":[]})",
       "block_size is 0"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"session":-1,"hash_ids":[]})",
       "session is -1"},
      {R"({"timestamp":1,"input_length":9,"output_length":1,"session":18446744073709551615,"hash_ids":[]})",
       "session is 18446744073709551615"},
      {R"({"timestamp":1,"timestamp":1,"input_length":9,"output_length":1,"hash_ids":[]})",
       "duplicate key 'timestamp'"},
      {"{\"a\":\"\xff\"}", "not JSON"},
      {R"({"a":)" + std::string(1000, '[') + std::string(1000, ']') + "}", "nested deeper than"},
      {kGood + kGood, "not JSON"},
      {std::string(1, '\0') + kGood, "column 1: a zero byte, expected JSON"},
      {kGood + std::string(1, '\0') + "not looked at", "a zero byte, expected JSON"},
      {"\"" + std::string((16 << 20) + 1, 'x') + "\"", "longer than 16777216"},
  }));
  CAPTURE(bad.line.substr(0, 200));
  const auto trace = RequestTrace::parse(kGood + "\n" + bad.line + "\n" + kGood, "f");
  REQUIRE_FALSE(trace);
  CAPTURE(trace.error().what);
  CHECK(trace.error().code == Code::kCorrupt);
  CHECK(trace.error().what.find("f:2: ") == 0);
  CHECK(trace.error().what.find(bad.message) != std::string::npos);
  CHECK(trace.error().what.find('\n') == std::string::npos);
}

TEST_CASE("a file without requests is refused") {
  for (const char* text : {"", "\n\n", "  \r\n"}) CHECK_FALSE(RequestTrace::parse(text, "f"));
}

TEST_CASE("plain and compressed files read the same") {
  const test::TempDir dir;
  for (const char* name : {"a.jsonl", "a.jsonl.zst"}) {
    auto file = OutputFile::create(dir / name);
    REQUIRE(file);
    REQUIRE((*file).write(test::bytes_of(kGood + "\n" + kGood)));
    REQUIRE((*file).commit());
    const auto trace = RequestTrace::open(dir / name);
    REQUIRE(trace);
    CHECK((*trace).requests().size() == 2);
    CHECK((*trace).hash_ids().size() == 4);
  }
  CHECK_FALSE(RequestTrace::open(dir / "missing"));
}

TEST_CASE("the bundled request trace opens") {
  const auto trace = RequestTrace::open(LEHR_DATA_DIR "/conversation-cut.jsonl.zst");
  REQUIRE(trace);
  CHECK((*trace).requests().size() == 1500);
  CHECK((*trace).requests()[0].input_length == 6758);
  CHECK((*trace).blocks((*trace).requests()[1])[1] == 14);
}

}  // namespace
}  // namespace lehr::formats
