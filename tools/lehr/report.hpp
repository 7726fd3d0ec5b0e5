// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lehr/replay_options.hpp"

namespace lehr::tools {

inline constexpr int kReportSchema = 1;

/// What was replayed, on what: the head of every report.
nlohmann::ordered_json describe(const ReplayArguments& arguments, const Prepared& prepared);
/// One policy's figures at one capacity. Times are predicted unless named measured.
nlohmann::ordered_json figures(const runtime::ReplayResult& result,
                               const runtime::ReplayOptions& options, Bytes page_bytes);

/// Nearest rank: the smallest value with at least `share` of all at or below it.
double percentile(std::vector<double> values, double share);

/// Found out before long work, not after it: can `path` be written?
Status can_write_json(const std::string& path);

/// Writes to a file atomically, or to standard output for "-".
Status write_json(const std::string& path, const nlohmann::ordered_json& report);

}  // namespace lehr::tools
