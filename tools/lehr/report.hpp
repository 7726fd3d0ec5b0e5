// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/lehr/replay_options.hpp"

namespace lehr::tools {

inline constexpr int kReportSchema = 1;

/// What was replayed, on what: the head of every report.
nlohmann::ordered_json describe(const ReplayArguments& arguments, const Prepared& prepared);
/// One policy's figures at one capacity. Times are predicted unless named measured.
nlohmann::ordered_json figures(const runtime::ReplayResult& result,
                               const runtime::ReplayOptions& options, Bytes page_bytes);

/// What pages at the lower precision make of page counts: they take fewer bytes. Those of them that
/// crossed ahead of need are few, and counted as read.
struct ReadBytes {
  double hits = 0;
  double misses = 0;
  double useful = 0;  ///< towards HBM, and read there or on their way

  ReadBytes(const runtime::StepReport& report, Bytes page_bytes,
            const std::optional<runtime::LoweringResult>& lowering);
  double hit_rate() const { return hits + misses > 0 ? hits / (hits + misses) : 1; }
};

/// Nearest rank: the smallest value with at least `share` of all at or below it.
double percentile(std::vector<double> values, double share);

/// Found out before long work, not after it: can `path` be written?
Status can_write_json(const std::string& path);

/// Writes to a file atomically, or to standard output for "-".
Status write_json(const std::string& path, const nlohmann::ordered_json& report);

}  // namespace lehr::tools
