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
  bool tiering = true;            ///< false: the same kernels over pages that all stay in HBM
  std::string nvme_directory;     ///< for the file of a tier below host memory
  std::uint32_t spare_pages = 0;  ///< in host memory for its pages on their way; 0: by its size
  std::string faults;             ///< of its transfers (transfer/faults.hpp)
};

/// What a run did with the tier below the home tier, a step after the warm-up in the mean.
struct BelowFigures {
  std::string name;             ///< empty: there was none
  double staged = 0, sunk = 0;  ///< pages
  Seconds predicted_stall = 0;  ///< of reads that the model lets a layer wait for
  Seconds predicted_reads = 0;  ///< on the link: those, and those ahead of need
  Seconds predicted_writes = 0;
  Seconds reading = 0, writing = 0;  ///< with reads, or writes, of the file under way
  Seconds waited = 0;                ///< the host, before a launch
  Seconds exposed = 0;               ///< of that, while the GPU had nothing to do
  std::uint32_t in_parts = 0;        ///< steps of the run that took more than one launch
  Seconds predicted_step = 0, measured_step = 0;  ///< with stalls, with what was exposed
};

/// The whole loop by the wall clock, after the warm-up.
struct LoopFigures {
  double tokens = 0;
  Seconds wall = 0;
  Seconds gpu = 0;     ///< that steps took on the GPU
  Seconds waited = 0;  ///< the GPU had nothing to do
  double per_second() const { return wall > 0 ? tokens / wall : 0; }
  double per_gpu_second() const { return gpu > 0 ? tokens / gpu : 0; }
};

/// A replay on the cuda machine: predicted beside measured, both of what the GPU does; a tier below
/// host memory is told apart. Steps before the warm-up's end are left out of errors and quantiles.
struct DecodeOutcome {
  runtime::ReplayResult result;
  std::shared_ptr<runtime::cuda::DecodeLog> log;
  std::vector<Seconds> predicted, measured;  ///< by step
  runtime::ErrorQuantiles steps, layers;
  std::vector<runtime::MeasuredLayer> measured_layers;  ///< by step, then layer
  runtime::Calibration calibration;
  runtime::ErrorQuantiles calibrated_steps;
  BelowFigures below;
  LoopFigures loop;
  Seconds host = 0;          ///< median of deciding and listing a step
  Seconds listing = 0;       ///< median of listing it alone
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
