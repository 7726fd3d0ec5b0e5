// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/inspect.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/runtime/formats/trace_files.hpp"

namespace lehr::tools {
namespace {

using formats::AttentionTrace;
using formats::RequestTrace;

/// Four steps on four pages of one token (prompt 4, so a fifth to eighth page grow): layer 0 reads
/// by hand.
formats::AttentionMeta one_group(std::uint32_t prompt, std::uint32_t steps) {
  formats::AttentionMeta meta;
  meta.model += "m";
  meta.workload += "w";
  meta.page_tokens = meta.q_heads = meta.kv_heads = meta.head_dim = meta.model_layers = 1;
  meta.kv_bytes_per_element = 2;
  meta.layer_ids = {0};
  meta.prompt_tokens = prompt;
  meta.steps = steps;
  return meta;
}

TEST_CASE("selection, working set and reuse of a decode worked by hand") {
  const test::TempDir dir;
  formats::AttentionParts parts;
  parts.meta = one_group(3, 3);  // 4, 5, 6 pages
  // One heavy page a step, beside the tail: {1,3}, {1,4}, {0,5}.
  const std::vector<MassCode> mass = {255, 0,   255, 255, 255, 255,  //
                                      255, 0,   255, 255, 255, 255,  //
                                      0,   255, 255, 255, 255, 255};
  parts.mass = mass;
  REQUIRE(formats::write_attention_trace(dir / "t", parts));
  const auto trace = AttentionTrace::open(dir / "t");
  REQUIRE(trace);
  SelectionRule rule;
  rule.kind = SelectionRule::Kind::kMass;
  rule.amount = 0.95;
  rule.sinks = 0;
  rule.recent = 1;
  const AttentionReport report = inspect_attention(*trace, rule);

  REQUIRE(report.rules.size() == 3);
  const SelectionSummary& s = report.rules[1].second;
  CHECK(report.rules[1].first == "mass:0.95");
  CHECK(s.selected == Approx((2.0 / 4 + 2.0 / 5 + 2.0 / 6) / 3));
  CHECK(s.least == Approx(2.0 / 6));
  CHECK(s.most == Approx(2.0 / 4));
  CHECK(s.overlap == Approx(1.0 / 4));  // page 1 at step 1, of four reads
  CHECK(s.ever == Approx(5.0 / 6));
  REQUIRE(report.layers.size() == 1);
  CHECK(report.layers[0].second.overlap == s.overlap);

  REQUIRE(report.working_set.size() == 3);
  const WorkingSetPoint& last = report.working_set[2];
  CHECK(last.step == 2);
  CHECK(last.context_tokens == 6);
  CHECK(last.pages == 6);
  CHECK(last.selected == 2);
  CHECK(last.ever == 5);
  CHECK(report.window_steps == 3);
  CHECK(last.window == 5);

  // Stream 1 3 1 4 0 5: one repeat, one page between.
  CHECK(report.reuse.accesses == 6);
  CHECK(report.reuse.distinct == 5);
  for (const auto& [share, distance] : report.reuse.percentiles) CHECK(distance == 1U);
}

TEST_CASE("another rule is reported beside the three mass targets") {
  const auto trace = AttentionTrace::open(LEHR_DATA_DIR "/longdoc-cut.safetensors.zst");
  REQUIRE(trace);
  const AttentionReport report = inspect_attention(*trace, *SelectionRule::parse("topk:10%"));
  REQUIRE(report.rules.size() == 4);
  CHECK(report.rules[3].first == "topk:0.1");
  // ceil(10 %) of 494 to 500 pages, and the first and last four where they are not among them. The
  // whole recording's published figures are 0.102 and 0.79.
  CHECK(report.rules[3].second.selected == Approx(0.102).margin(0.001));
  CHECK(report.rules[3].second.overlap == Approx(0.79).margin(0.02));
}

double share_of(MassCode code) { return code == kNoMass ? 0 : std::exp2(-code / 8.0); }

/// The selection `mass:0.95` in floating point and by sorting: no counting over codes, no fixed
/// point.
std::set<std::uint32_t> plain_selection(const MassCode* mass, const MassCode* peak,
                                        std::uint32_t live) {
  std::vector<std::pair<int, int>> order(live);
  double total = 0;
  for (std::uint32_t p = 0; p < live; ++p) {
    order[p] = {(mass[p] + peak[p] + 1) / 2, -static_cast<int>(p)};
    total += share_of(mass[p]);
  }
  std::sort(order.begin(), order.end());
  std::set<std::uint32_t> chosen = {0};
  for (std::uint32_t p = live - 4; p < live; ++p) chosen.insert(p);
  double have = 0;
  for (const auto& [key, negative] : order) {
    if (have >= 0.95 * total) break;
    const auto p = static_cast<std::uint32_t>(-negative);
    chosen.insert(p);
    have += share_of(mass[p]);
  }
  return chosen;
}

TEST_CASE("figures of the bundled trace agree with a plain recount") {
  const auto trace = AttentionTrace::open(LEHR_DATA_DIR "/longdoc-cut.safetensors.zst");
  REQUIRE(trace);
  const AttentionReport report = inspect_attention(*trace, *SelectionRule::parse("mass:0.95"));

  double share_sum = 0;
  std::size_t rows = 0, again = 0, later = 0;
  std::set<std::size_t> ever;
  std::vector<std::set<std::uint32_t>> before(90);
  for (std::uint32_t step = 0; step < (*trace).steps(); ++step) {
    const std::uint32_t live = (*trace).pages_at(step);
    for (std::uint32_t group = 0; group < 90; ++group) {
      const MassCode* mass = (*trace).mass_row(step, group / 3, group % 3);
      const MassCode* peak = (*trace).peak_row(step, group / 3, group % 3);
      std::set<std::uint32_t> chosen = plain_selection(mass, peak, live);
      share_sum += static_cast<double>(chosen.size()) / live;
      ++rows;
      for (const std::uint32_t p : chosen) {
        ever.insert(std::size_t{group} * 500 + p);
        if (step > 0) again += before[group].count(p);
      }
      if (step > 0) later += chosen.size();
      before[group] = std::move(chosen);
    }
  }
  const SelectionSummary& s = report.rules[1].second;
  CHECK(s.selected == Approx(share_sum / static_cast<double>(rows)).epsilon(1e-4));
  CHECK(s.overlap == Approx(static_cast<double>(again) / static_cast<double>(later)).epsilon(1e-4));
  CHECK(s.ever == Approx(static_cast<double>(ever.size()) / 45000).epsilon(1e-4));
  CHECK(s.selected == Approx(0.12).margin(0.01));
}

TEST_CASE("requests worked by hand") {
  const auto line = [](int time, int tokens, const char* ids) {
    return fmt::format(
        R"({{"timestamp":{},"input_length":{},"output_length":2,"session":1,"block_size":16,"hash_ids":[{}]}})",
        time, tokens, ids);
  };
  const auto trace = RequestTrace::parse(fmt::format("{}\n{}\n{}\n", line(0, 48, "1,2,3"),
                                                     line(1000, 48, "1,9,3"), line(3000, 16, "1")),
                                         "f");
  REQUIRE(trace);
  const RequestReport report = inspect_requests(*trace, 512);
  CHECK(report.requests == 3);
  CHECK(report.sessions == 1);
  CHECK(report.duration_ms == 3000);
  CHECK(report.block_tokens == 16);
  CHECK(report.block_tokens_recorded);
  CHECK(report.input.total == 112);
  CHECK(report.input.median == 48);
  CHECK(report.input.most == 48);
  CHECK(report.output.mean == 2);
  CHECK(report.visits == 7);
  CHECK(report.distinct == 4);
  CHECK(report.seen_before == Approx(3.0 / 7));    // 1, 3, 1
  CHECK(report.prefix_before == Approx(2.0 / 7));  // 3 comes after the new 9
  CHECK(report.hottest_percent == Approx(3.0 / 7));
  REQUIRE(report.phases.size() == 3);
  CHECK(report.phases[1].seen_before == 2);
  CHECK(report.phases[1].distinct == 3);
  // 1 2 3 1 9 3 1: distances 2, 2, 2.
  CHECK(report.reuse.percentiles.back().second == 2U);
}

}  // namespace
}  // namespace lehr::tools
