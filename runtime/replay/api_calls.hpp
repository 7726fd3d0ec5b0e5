// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/include/lehr.h"
#include "runtime/replay/replay.hpp"

namespace lehr::runtime {

/// The C status as an Error, with the text that the library kept for this thread.
Status said(lehr_status status);

/// The configuration by which an engine would open such a runtime.
std::string configuration(const RuntimeOptions& options, const KvGeometry& geometry,
                          const ApiOptions& api);

/// What the runtime has to say to people, line by line.
std::vector<std::string> notes_of(lehr_runtime runtime);

StepReport from_c(const lehr_step_report& report);

}  // namespace lehr::runtime
