// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/units.hpp"
#include "runtime/formats/attention_trace.hpp"
#include "runtime/formats/request_trace.hpp"
#include "runtime/selection.hpp"

namespace lehr::tools {

/// Reuse distances in items (pages or blocks) and the LRU hit ratios that follow from them.
struct ReuseSummary {
  std::uint64_t accesses = 0;
  std::uint64_t distinct = 0;
  std::vector<std::pair<double, std::optional<std::uint32_t>>> percentiles;  ///< share, distance
  std::vector<std::pair<double, double>>
      lru;  ///< capacity as a share of the distinct items, hit ratio
};

/// How a rule selects, over all layers and KV heads or for one layer.
struct SelectionSummary {
  double selected = 0;  ///< mean share of a row's pages that a step reads
  double least = 0;
  double most = 0;
  double overlap = 0;  ///< share of a step's pages that the step before read too
  double ever = 0;     ///< share of all pages read at least once
};

struct WorkingSetPoint {
  std::uint32_t step = 0;
  std::uint64_t context_tokens = 0;
  std::uint64_t pages = 0;     ///< pages that exist
  std::uint64_t selected = 0;  ///< read at this step
  std::uint64_t window = 0;    ///< distinct, read in the last `window_steps`
  std::uint64_t ever = 0;      ///< distinct, read since step 0
};

struct AttentionReport {
  SelectionRule rule;
  std::uint32_t window_steps = 0;
  std::vector<std::pair<std::string, SelectionSummary>> rules;     ///< rule text, over all layers
  std::vector<std::pair<std::uint32_t, SelectionSummary>> layers;  ///< layer id, under `rule`
  std::vector<WorkingSetPoint> working_set;                        ///< under `rule`
  ReuseSummary reuse;                                              ///< under `rule`
};

/// Everything that `lehr inspect` says of a decode beyond its metadata. The stream of accesses is
/// by step, layer, KV head, page.
AttentionReport inspect_attention(const formats::AttentionTrace& trace, const SelectionRule& rule);

struct RequestPhase {
  std::uint64_t requests = 0;
  std::uint64_t visits = 0;
  std::uint64_t distinct = 0;     ///< in this phase
  std::uint64_t seen_before = 0;  ///< visits to a block that any earlier request had
};

struct LengthSummary {
  std::uint64_t total = 0;
  double mean = 0;
  std::uint32_t median = 0;
  std::uint32_t p99 = 0;
  std::uint32_t most = 0;
};

struct RequestReport {
  std::uint64_t requests = 0;
  std::uint64_t sessions = 0;  ///< 0 where no request names one
  double duration_ms = 0;
  std::uint32_t block_tokens = 0;
  bool block_tokens_recorded = false;
  LengthSummary input;
  LengthSummary output;
  std::uint64_t visits = 0;
  std::uint64_t distinct = 0;
  double seen_before = 0;    ///< share of visits; what a cache without limit hits, block by block
  double prefix_before = 0;  ///< the same with the prefix rule: all blocks before it were seen too
  double hottest_percent = 0;  ///< share of visits that go to the most visited 1 % of the blocks
  std::vector<RequestPhase> phases;
  ReuseSummary reuse;
};

/// `block_tokens` stands in where the records do not say.
RequestReport inspect_requests(const formats::RequestTrace& trace, std::uint32_t block_tokens);

}  // namespace lehr::tools
