// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/capi/boundary.hpp"

// Arguments of steps with contents, which runtimes and groups of them take alike.

namespace lehr::capi {

/// Where a runtime's tensors must lie.
struct TensorPlace {
  std::optional<std::int32_t> gpu;  ///< none: the process's own memory
};
inline TensorPlace place_of(const Instance& instance) {
  if (instance.machine != MachineKind::kCuda) return {};
  return {static_cast<std::int32_t>(instance.config.top_device)};
}

Result<contents::Tensor> tensor_of(const TensorPlace& place, const lehr_tensor* given,
                                   const char* what);

struct AttendArgs {
  std::uint32_t layer = 0;
  contents::AttendCall call;
};
Result<AttendArgs> attend_args(const TensorPlace& place, const lehr_attend_request* request);

/// A step's report as C has it; `links` of the platform.
lehr_step_report to_c(const runtime::StepReport& report, std::size_t links);

}  // namespace lehr::capi
