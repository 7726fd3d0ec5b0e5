// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/detail/attend_work.cuh"
#include "kernels/cuda/detail/launch.hpp"

namespace lehr::kernels::cuda {

/// How one launch of an attend kernel is laid out.
struct AttendPlan {
  AttendArgs args;
  std::uint32_t ctas, threads, shared;
  bool programmatic;
  std::uint32_t* grid_words;  ///< two, zero between launches: for a barrier of all CTAs
};

/// Checks tuning, workspace and stream, and fills in what was left open.
Result<AttendPlan> plan_attend(const StepShape& shape, const AttendParams& params,
                               const AttendTuning& tuning, void* workspace,
                               std::size_t workspace_bytes, const DeviceFacts& device,
                               std::uint32_t row_tiles, std::uint32_t tile_bytes);

}  // namespace lehr::kernels::cuda
