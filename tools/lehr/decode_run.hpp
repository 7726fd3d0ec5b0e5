// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/machines/cuda.hpp"
#include "runtime/replay/replay.hpp"
#include "runtime/report/prediction.hpp"
#include "tools/lehr/replay_options.hpp"

namespace lehr::tools {

/// How a replay uses a GPU.
struct DecodeOptions {
  std::int32_t gpu = 0;
  std::int32_t donor = 1;
  bool check_reads = false;
  bool trace_kernels = false;
  bool tiering = true;  ///< false: the same kernels over pages that all stay in HBM
};

/// A replay on the cuda machine: predicted beside measured. Steps before the warm-up's end are left
/// out of errors and quantiles.
struct DecodeOutcome {
  runtime::ReplayResult result;
  std::shared_ptr<runtime::cuda::DecodeLog> log;
  std::vector<Seconds> predicted, measured;  ///< by step
  runtime::ErrorQuantiles steps, layers;
  std::vector<runtime::MeasuredLayer> measured_layers;  ///< by step, then layer
  runtime::Calibration calibration;
  runtime::ErrorQuantiles calibrated_steps;
  Seconds host = 0;          ///< median of deciding and listing a step
  Seconds launch = 0;        ///< median of handing a step over
  Seconds idle = 0;          ///< median of the device's wait before a step
  std::uint64_t digest = 0;  ///< of all outputs of all steps

  double p50() const;
  double p99() const;
};

/// `options` names policy and capacities; they are fitted to what the pages take. The weights' and
/// the boxes' bytes are part of the prediction.
Result<DecodeOutcome> decode(const Prepared& prepared, runtime::ReplayOptions options,
                             const DecodeOptions& how, const runtime::Progress& progress = {});

Seconds mean(const std::vector<Seconds>& values);

/// Steps as another platform (a calibrated one) predicts them, from the same loads.
std::vector<Seconds> predicted_by(const DecodeOutcome& outcome,
                                  const placement::Platform& platform);

/// What people read after a replay.
void print_decode(const DecodeOutcome& outcome, const runtime::ReplayOptions& options);
nlohmann::ordered_json decode_figures(const DecodeOutcome& outcome,
                                      const runtime::ReplayOptions& options);
/// The profile `name` with the outcome's calibration in it, as TOML that --profile takes.
Status write_calibrated(const std::string& path, const std::string& name,
                        const DecodeOutcome& outcome);
/// Kernels, copies by direction, host work, predictions and counts of every step.
Status write_timeline(const std::string& path, const DecodeOutcome& outcome,
                      const placement::Platform& platform);

}  // namespace lehr::tools
