// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/replay/replay.hpp"

namespace lehr::runtime {

/// A replay in which attention really runs.
struct AttendResult {
  ReplayResult replay;
  /// Of each output row (step, layer, query head): its distance from attention in float64 over what
  /// was recorded, against that one's length (2-norms).
  std::vector<double> errors;
};

/// Replays one trace on the host machine through lehr.h with its own K, V and queries in the pages.
/// Every page is read in every step, so that what differs from float64 is precision alone. Refuses
/// traces without q, k and v, imposed page sizes, and policies that know the future.
Result<AttendResult> attend_through_api(const formats::AttentionTrace& trace,
                                        const ReplayOptions& options, const ApiOptions& api,
                                        const Progress& progress = {});

}  // namespace lehr::runtime
