// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/cut.hpp"

#include <algorithm>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::tools {
namespace {

using formats::AttentionTrace;

/// Prompt 5, three steps, pages of 2 tokens, layers 0, 3, 5, two KV heads; every value names its
/// place.
struct Source {
  formats::AttentionMeta meta;
  std::vector<MassCode> mass, peak;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint16_t> q, k, v;

  Source() {
    meta.model += "m";
    meta.workload += "w";
    meta.page_tokens = 2;
    meta.q_heads = meta.kv_heads = 2;
    meta.head_dim = 1;
    meta.kv_bytes_per_element = 2;
    meta.model_layers = 6;
    meta.layer_ids = {0, 3, 5};
    meta.prompt_tokens = 5;
    meta.steps = 3;
    for (std::uint32_t t = 0; t < 3; ++t) {
      for (std::uint32_t row = 0; row < 6; ++row) {
        q.push_back(static_cast<std::uint16_t>(t * 10 + row));
        for (std::uint32_t p = 0; p < 4; ++p) {
          const auto code = static_cast<MassCode>(t * 60 + row * 8 + p);
          mass.push_back(p < meta.pages_at(t) ? code : kNoMass);
          peak.push_back(p < meta.pages_at(t) ? static_cast<MassCode>(code + 1) : kNoMass);
        }
      }
    }
    for (std::uint16_t i = 0; i < 8; ++i) tokens.push_back(i);
    for (std::uint16_t i = 0; i < 48; ++i) k.push_back(i);
    for (std::uint16_t i = 0; i < 48; ++i) v.push_back(static_cast<std::uint16_t>(1000 + i));
  }
};

/// Cuts, writes and reads back: the result must be a valid trace.
AttentionTrace cut_and_read(const test::TempDir& dir, const CutSpec& spec) {
  const Source source;
  REQUIRE(formats::write_attention_trace(
      dir / "in",
      {source.meta, source.mass, source.peak, source.tokens, source.q, source.k, source.v, {}}));
  const auto in = AttentionTrace::open(dir / "in");
  REQUIRE(in);
  const auto cut = cut_trace(*in, spec);
  REQUIRE(cut);
  REQUIRE(formats::write_attention_trace(dir / "out", (*cut).parts));
  auto out = AttentionTrace::open(dir / "out");
  REQUIRE(out);
  return *std::move(out);
}

TEST_CASE("nothing asked, everything kept") {
  const test::TempDir dir;
  const AttentionTrace out = cut_and_read(dir, {});
  const Source source;
  CHECK(std::ranges::equal(out.parts().mass, source.mass));
  CHECK(std::ranges::equal(out.parts().k, source.k));
  CHECK(out.meta().other.back().first == "cut");
}

TEST_CASE("steps, layers and prompt tail are cut from the right places") {
  const test::TempDir dir;
  CutSpec spec;
  spec.first_step = 1;
  spec.steps = 1;
  spec.layer_ids = {3};
  spec.prompt_tail = 3;  // of the 6 tokens before step 1: drops 3, but only whole pages: 2 tokens
  const AttentionTrace out = cut_and_read(dir, spec);
  CHECK(out.meta().prompt_tokens == 4);
  CHECK(out.steps() == 1);
  CHECK(out.meta().layer_ids == std::vector<std::uint32_t>{3});
  REQUIRE(out.pages() == 3);  // tokens 2..6
  // Step 1, layer 3 is rows 2 and 3 (a head each), pages 1 to 3.
  CHECK(out.mass_row(0, 0, 0)[0] == 60 + 2 * 8 + 1);
  CHECK(out.mass_row(0, 0, 1)[2] == 60 + 3 * 8 + 3);
  CHECK(out.peak_row(0, 0, 0)[0] == 60 + 2 * 8 + 2);
  CHECK(std::ranges::equal(out.parts().tokens, std::vector<std::int32_t>{2, 3, 4, 5, 6}));
  CHECK(std::ranges::equal(out.parts().q, std::vector<std::uint16_t>{12, 13}));
  // Groups 2 and 3 of 8 tokens each, tokens 2 to 6.
  CHECK(std::ranges::equal(out.parts().k,
                           std::vector<std::uint16_t>{18, 19, 20, 21, 22, 26, 27, 28, 29, 30}));
  CHECK(out.parts().v[0] == 1018);
}

TEST_CASE("a cut that the trace cannot give is refused") {
  const test::TempDir dir;
  const AttentionTrace trace = cut_and_read(dir, {});
  CHECK(cut_trace(trace, {.steps = 3}));
  CHECK_FALSE(cut_trace(trace, {.steps = 4}));
  CHECK_FALSE(cut_trace(trace, {.steps = 0}));
  CHECK_FALSE(cut_trace(trace, {.first_step = 3}));
  CHECK_FALSE(cut_trace(trace, {.first_step = 1, .steps = 3}));
  CHECK_FALSE(cut_trace(trace, {.layer_ids = {0, 1}}));
  CHECK_FALSE(cut_trace(trace, {.prompt_tail = 6}));
  CHECK_FALSE(cut_trace(trace, {.prompt_tail = 0}));
}

TEST_CASE("a layer list is numbers and ranges, ascending") {
  CHECK(*parse_layer_list("3") == std::vector<std::uint32_t>{3});
  CHECK(*parse_layer_list("0,2,5-7") == std::vector<std::uint32_t>{0, 2, 5, 6, 7});
  for (const char* bad :
       {"", ",", "1,", "a", "2,1", "1,1", "3-2", "1-", "1 ,2", "-1", "99999999999", "0-99999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_layer_list(bad));
  }
}

TEST_CASE("the first requests are kept to the letter") {
  const std::string line =
      R"({"timestamp":1, "input_length":9,"output_length":1,"hash_ids":[],"x": 1})";
  const auto cut = cut_requests(fmt::format("{0}\n\n{0}\n{0}", line), "f", 2);
  REQUIRE(cut);
  CHECK(*cut == fmt::format("{0}\n{0}\n", line));
  CHECK_FALSE(cut_requests(fmt::format("{}\nnonsense", line), "f", 1));
}

}  // namespace
}  // namespace lehr::tools
