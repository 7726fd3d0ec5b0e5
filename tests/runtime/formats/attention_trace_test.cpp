// SPDX-License-Identifier: Apache-2.0
#include "runtime/formats/attention_trace.hpp"

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <type_traits>

#include <catch2/catch.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::formats {
namespace {

using test::bytes_of;
using test::read_text;
using test::TempDir;
using test::write_text;

/// A trace worked out by hand: prompt 3, two steps, pages of 2 tokens (2 pages at step 0, 3 at step
/// 1), layers 1 and 4 of 6, one KV head with two query heads, head_dim 2.
struct Tiny {
  AttentionMeta meta;
  std::vector<MassCode> mass = {8, 8, 255, /**/ 0, 40, 255, /**/ 16, 16, 8, /**/ 1, 2, 3};
  std::vector<MassCode> peak = {0, 8, 255, /**/ 0, 32, 255, /**/ 8, 16, 0, /**/ 1, 2, 3};
  std::vector<std::int32_t> tokens = {7, 8, 9, 10, 11};
  std::vector<std::uint16_t> q, k, v;
  std::string note = "odd";

  Tiny() {
    meta.model += "m";
    meta.workload += "w";
    meta.page_tokens = 2;
    meta.q_heads = 2;
    meta.kv_heads = 1;
    meta.head_dim = 2;
    meta.kv_bytes_per_element = 2;
    meta.model_layers = 6;
    meta.layer_ids = {1, 4};
    meta.prompt_tokens = 3;
    meta.steps = 2;
    meta.other = {{"mass_resolution", "any"}, {"forced_steps", "0"}};
    for (std::uint16_t i = 0; i < 16; ++i) q.push_back(i);
    for (std::uint16_t i = 0; i < 20; ++i) k.push_back(static_cast<std::uint16_t>(100 + i));
    for (std::uint16_t i = 0; i < 20; ++i) v.push_back(static_cast<std::uint16_t>(200 + i));
  }

  AttentionParts parts() const {
    return {meta, mass, peak, tokens, q, k, v, {{"note", TensorType::kU8, {3}, bytes_of(note)}}};
  }
};

TEST_CASE("a trace comes back as it was written, plain and compressed") {
  const TempDir dir;
  const Tiny tiny;
  const auto path = dir / GENERATE("t.safetensors", "t.safetensors.zst");
  REQUIRE(write_attention_trace(path, tiny.parts()));
  auto opened = AttentionTrace::open(path);
  REQUIRE(opened);
  const AttentionTrace trace = *std::move(opened);  // spans survive the move
  const AttentionParts& parts = trace.parts();
  CHECK(trace.meta().model == "m");
  CHECK(trace.meta().layer_ids == std::vector<std::uint32_t>{1, 4});
  CHECK(trace.meta().other == tiny.meta.other);
  CHECK(trace.layers() == 2);
  CHECK(trace.pages() == 3);
  CHECK(trace.pages_at(0) == 2);
  CHECK(trace.pages_at(1) == 3);
  CHECK(trace.geometry().page_bytes() == 2 * 2 * 2 * 2);
  CHECK(std::ranges::equal(parts.mass, tiny.mass));
  CHECK(std::ranges::equal(parts.peak, tiny.peak));
  CHECK(std::ranges::equal(parts.tokens, tiny.tokens));
  CHECK(std::ranges::equal(parts.q, tiny.q));
  CHECK(std::ranges::equal(parts.k, tiny.k));
  CHECK(std::ranges::equal(parts.v, tiny.v));
  REQUIRE(parts.other.size() == 1);
  CHECK(parts.other[0].name == "note");
  CHECK(std::ranges::equal(parts.other[0].data, bytes_of(tiny.note)));
  CHECK(trace.mass_row(1, 0, 0)[2] == 8);
  CHECK(trace.mass_row(0, 1, 0)[1] == 40);
  CHECK(trace.peak_row(1, 1, 0)[0] == 1);
  CHECK(trace.compressed() == (path.extension() == ".zst"));
  CHECK(trace.file_bytes() == std::filesystem::file_size(path));

  REQUIRE(write_attention_trace(dir / "again", parts));
  REQUIRE(write_attention_trace(dir / "first", tiny.parts()));
  CHECK(read_text(dir / "again") == read_text(dir / "first"));
}

TEST_CASE("compression is told by content, whatever the name") {
  const TempDir dir;
  REQUIRE(write_attention_trace(dir / "a.zst", Tiny().parts()));
  REQUIRE(write_attention_trace(dir / "b", Tiny().parts()));
  std::filesystem::rename(dir / "a.zst", dir / "a");
  std::filesystem::rename(dir / "b", dir / "b.zst");
  CHECK(AttentionTrace::open(dir / "a"));
  CHECK(AttentionTrace::open(dir / "b.zst"));
}

TEST_CASE("optional tensors may be missing") {
  const TempDir dir;
  Tiny tiny;
  AttentionParts parts = tiny.parts();
  parts.peak = {};
  parts.tokens = {};
  parts.q = parts.k = parts.v = {};
  parts.other.clear();
  REQUIRE(write_attention_trace(dir / "t", parts));
  const auto trace = AttentionTrace::open(dir / "t");
  REQUIRE(trace);
  CHECK_FALSE((*trace).has_peak());
  CHECK((*trace).peak_row(0, 0, 0) == nullptr);
}

/// The tiny trace as raw text, with a chance to spoil header or data before it is assembled.
Error refusal(const std::function<void(std::string& header, std::string& data)>& spoil) {
  const TempDir dir;
  REQUIRE(write_attention_trace(dir / "t", Tiny().parts()));
  const std::string file = read_text(dir / "t");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header = file.substr(8, length);
  std::string data = file.substr(8 + length);
  spoil(header, data);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  write_text(dir / "t", test::safetensors_file(header, data));
  const auto trace = AttentionTrace::open(dir / "t");
  REQUIRE_FALSE(trace);
  CHECK(trace.error().what.find((dir / "t").string() + ": ") == 0);
  return trace.error();
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
}

struct Swap {
  std::string from, to, message;
};

TEST_CASE("metadata that is missing or wrong is refused by key") {
  const Swap swap = GENERATE(values<Swap>({
      {R"("format":"lehr.attention-trace")", R"("format":"other")",
       "'format' is 'other', expected 'lehr.att"},
      {R"("version":"1")", R"("version":"2")", "'version' is '2', expected '1'"},
      {"log2_u8_8", "linear", "'mass_encoding' is 'linear'"},
      {R"("page_tokens":"2")", R"("page_tokens":"0")", "'page_tokens' is 0, expected 1 to"},
      {R"("page_tokens":"2")", R"("page_tokens":"-2")",
       "'page_tokens' is '-2', expected a whole number"},
      {R"("page_tokens":"2")", R"("page_tokens":"2.0")", "'page_tokens' is '2.0'"},
      {R"("page_tokens":"2")", R"("page_tokens":"")", "'page_tokens' is ''"},
      {R"("page_tokens":"2")", R"("page_tokens":"99999999999")", "'page_tokens' is '99999999999'"},
      {R"("page_tokens":"2",)", "", "no 'page_tokens'"},
      {R"("steps":"2")", R"("steps":"0")", "'steps' is 0"},
      {R"("steps":"2")", R"("steps":"3")", "expected [prompt+T] = [6]"},
      {R"("steps":"2")", R"("steps":"4000000000")", "'steps' is"},
      {R"("prompt_tokens":"3")", R"("prompt_tokens":"4294967295")", "'prompt_tokens' is"},
      {R"("prompt_tokens":"3")", R"("prompt_tokens":"7")", "expected [prompt+T] = [9]"},
      {R"("q_heads":"2")", R"("q_heads":"3")", "expected [T,L,Hq,D] = [2,2,3,2]"},
      {R"("kv_heads":"1")", R"("kv_heads":"3")",
       "'q_heads' is 2, expected a multiple of kv_heads = 3"},
      {R"("kv_bytes_per_element":"2")", R"("kv_bytes_per_element":"17")", "expected 1 to 16"},
      {R"("layers":"6")", R"("layers":"4")",
       "'layer_ids' has 4, expected ascending numbers below layers = 4"},
      {R"("layer_ids":"1,4")", R"("layer_ids":"4,1")", "'layer_ids' has 1"},
      {R"("layer_ids":"1,4")", R"("layer_ids":"1,1")", "'layer_ids' has 1"},
      {R"("layer_ids":"1,4")", R"("layer_ids":"1,")", "'layer_ids' is '1,'"},
      {R"("layer_ids":"1,4")", R"("layer_ids":"")", "'layer_ids' is ''"},
      {R"("layer_ids":"1,4")", R"("layer_ids":"1")", "expected [T,L,Hq,D] = [2,1,2,2]"},
      {R"("model":"m",)", "", "no 'model'"},
      {R"("mass":{)", R"("mess":{)", "no tensor 'mass'"},
      {R"("v":{)", R"("w":{)", "tensor 'k' without 'v'"},
      {R"("peak":{"dtype":"U8")", R"("peak":{"dtype":"I8")",
       "tensor 'peak': dtype I8, expected U8"},
      {R"("tokens":{"dtype":"I32")", R"("tokens":{"dtype":"F32")",
       "tensor 'tokens': dtype F32, expected I32"},
      {R"("mass":{"dtype":"U8","shape":[2,2,1,3])", R"("mass":{"dtype":"U8","shape":[2,2,3,1])",
       "tensor 'mass': shape [2,2,3,1], expected [T,L,H,P] = [2,2,1,3]"},
  }));
  CAPTURE(swap.from, swap.to);
  const Error error =
      refusal([&](std::string& header, std::string&) { replace(header, swap.from, swap.to); });
  CAPTURE(error.what);
  CHECK(error.what.find(swap.message) != std::string::npos);
}

TEST_CASE("a newer version has its own code") {
  const Error error = refusal([](std::string& header, std::string&) {
    replace(header, R"("version":"1")", R"("version":"2")");
  });
  CHECK(error.code == Code::kVersion);
}

TEST_CASE("mass on a page that does not exist yet is refused with its place") {
  // Step 0 has 2 pages; the third code of a row must be 255 (control: the untouched file is
  // accepted above).
  const Error error = refusal([](std::string&, std::string& data) {
    // tokens (20), q (32), k (40), v (40) come first, then mass.
    data[132 + 3 + 2] = static_cast<char>(30);
  });
  CHECK(error.what.find("tensor 'mass': [0,1,0,2] is 30, expected 255") != std::string::npos);
}

TEST_CASE("parts that contradict each other are not written") {
  const TempDir dir;
  const Tiny tiny;
  AttentionParts parts = tiny.parts();
  SECTION("a shape") { parts.mass = parts.mass.first(11); }
  SECTION("no mass") { parts.mass = {}; }
  SECTION("a count") { parts.meta.steps = 0; }
  SECTION("an unknown tensor without its bytes") { parts.other[0].shape = {4}; }
  SECTION("a name used twice") { parts.other[0].name = "mass"; }
  CHECK_FALSE(write_attention_trace(dir / "t", parts));
  CHECK(dir.entries() == 0);
}

/// Rows of a step as the streaming writer takes them: without pages that do not exist yet.
std::vector<MassCode> live_rows(const std::vector<MassCode>& codes, std::uint32_t step) {
  std::vector<MassCode> out;
  for (std::size_t row = 0; row < 2; ++row) {
    const auto begin = codes.begin() + static_cast<std::ptrdiff_t>(step * 6 + row * 3);
    out.insert(out.end(), begin, begin + (step == 0 ? 2 : 3));
  }
  return out;
}

TEST_CASE("recorded step by step, a trace is the same file as written at once") {
  const TempDir dir;
  Tiny tiny;
  AttentionParts parts = tiny.parts();
  parts.q = parts.k = parts.v = {};
  parts.other.clear();
  REQUIRE(write_attention_trace(dir / "whole", parts));
  {
    auto writer = AttentionTraceWriter::open(dir / "stream", tiny.meta, true);
    REQUIRE(writer);
    for (std::uint32_t step = 0; step < 2; ++step) {
      CHECK((*writer).next_pages() == step + 2);
      REQUIRE((*writer).step(live_rows(tiny.mass, step), live_rows(tiny.peak, step)));
      CHECK_FALSE(std::filesystem::exists(dir / "stream"));
    }
    REQUIRE((*writer).set_tokens(tiny.tokens));
    REQUIRE((*writer).close());
  }
  CHECK(read_text(dir / "stream") == read_text(dir / "whole"));
  CHECK(dir.entries() == 2);
}

TEST_CASE("the recorder refuses what does not fit and stays usable") {
  const TempDir dir;
  Tiny tiny;
  auto writer = AttentionTraceWriter::open(dir / "t", tiny.meta, false);
  REQUIRE(writer);
  CHECK_FALSE((*writer).close());  // no step yet
  const auto rows = live_rows(tiny.mass, 0);
  CHECK_FALSE((*writer).step(std::span(rows).first(3), {}));
  CHECK_FALSE((*writer).step(rows, rows));  // peak was not announced
  CHECK((*writer).steps() == 0);
  REQUIRE((*writer).step(rows, {}));
  REQUIRE((*writer).set_tokens({1, 2}));
  CHECK_FALSE((*writer).close());  // prompt and one step are 4 tokens
  REQUIRE((*writer).set_tokens({1, 2, 3, 4}));
  REQUIRE((*writer).close());
  CHECK(AttentionTrace::open(dir / "t"));
}

TEST_CASE("a recorder for a place that cannot be written fails when it is opened") {
  CHECK_FALSE(AttentionTraceWriter::open("/proc/trace", Tiny().meta, true));
  CHECK_FALSE(AttentionTraceWriter::open("/nowhere/at/all/trace", Tiny().meta, true));
  AttentionMeta bad = Tiny().meta;
  bad.kv_heads = 0;
  const TempDir dir;
  CHECK_FALSE(AttentionTraceWriter::open(dir / "t", bad, true));
}

TEST_CASE("a recorder that dies leaves no file, and keeps an earlier one") {
  const TempDir dir;
  const Tiny tiny;
  write_text(dir / "old", "before");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto fresh = AttentionTraceWriter::open(dir / "new", tiny.meta, false);
    auto again = AttentionTraceWriter::open(dir / "old", tiny.meta, false);
    const bool ok = fresh && again && (*fresh).step(live_rows(tiny.mass, 0), {}) &&
                    (*again).step(live_rows(tiny.mass, 0), {});
    ::raise(ok ? SIGKILL : SIGTERM);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);
  CHECK(dir.entries() == 1);
  CHECK(read_text(dir / "old") == "before");
}

TEST_CASE("the bundled trace opens and has the shape that its page says") {
  const auto trace = AttentionTrace::open(LEHR_DATA_DIR "/longdoc-cut.safetensors.zst");
  REQUIRE(trace);
  CHECK((*trace).steps() == 96);
  CHECK((*trace).layers() == 30);
  CHECK((*trace).kv_heads() == 3);
  CHECK((*trace).pages() == 500);  // ceil((7900 + 96) / 16)
  CHECK((*trace).has_peak());
  CHECK((*trace).parts().tokens.size() == 7996);
  CHECK((*trace).geometry().page_bytes() == 4096);
}

TEST_CASE("a compressed trace past the caller's limit is refused") {
  const auto trace = AttentionTrace::open(LEHR_DATA_DIR "/longdoc-cut.safetensors.zst", 1 << 20);
  REQUIRE_FALSE(trace);
  CHECK(trace.error().reason == Reason::kOverBudget);
}

}  // namespace
}  // namespace lehr::formats
