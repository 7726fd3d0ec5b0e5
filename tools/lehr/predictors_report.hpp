// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/runtime.hpp"
#include "tools/lehr/predictor_trial.hpp"

namespace lehr::tools {

/// What the tables of `lehr experiment predictors` have as rows and columns.
struct PredictorsShape {
  std::vector<std::string> predictors;
  std::vector<std::string> hbm = {"10%", "25%"};
  std::vector<std::string> profiles = {"gh200", "h200-pcie5"};
  std::uint32_t warmup = 16;
};

/// A replay in which policy `table` read a predictor's odds, and the same with `lru`.
struct PredictorReplay {
  std::string profile;
  std::string hbm;
  Bytes page_bytes = 0;
  runtime::StepReport warm;
  runtime::StepReport lru;
};

/// One predictor on one trace.
struct PredictorRow {
  std::string trace;
  std::string predictor;
  Trial trial;  ///< budgets are by profile
  std::vector<PredictorReplay> replays;
};

nlohmann::ordered_json row_json(const PredictorRow& row, const PredictorsShape& shape);

/// The tables of a trace: what each predictor said of the next three steps, by layers, and what
/// that was worth.
void print_trace(const std::string& trace, const std::vector<PredictorRow>& rows,
                 const PredictorsShape& shape);
/// Means over the traces.
void print_mean(const std::vector<PredictorRow>& rows, const PredictorsShape& shape);
/// What the columns are.
void print_legend(const PredictorsShape& shape, std::string_view trained_on);

}  // namespace lehr::tools
