// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/model.hpp"
#include "runtime/machines/cuda/device.hpp"

namespace lehr::runtime::cuda {

/// One layer of one step: what the model was told and said.
struct LayerRecord {
  placement::LayerLoad load;
  placement::LayerTime predicted;
  std::uint32_t over_link = 0;  ///< pages that attention read across a link
  std::uint32_t installed = 0;  ///< of them kept
  std::uint32_t arrived = 0;    ///< promotions
  std::uint32_t written = 0;    ///< write-backs
};

/// What a step did with the tier below the home tier.
struct BelowRecord {
  std::uint64_t staged = 0;  ///< pages that it brought up
  std::uint64_t sunk = 0;    ///< pages that it sent down
  Seconds waited = 0;        ///< of the host, for pages that the step reads, and for spare places
  /// Since the step before: with reads, or writes, of the file under way.
  Seconds reading = 0, writing = 0;
};

struct StepRecord {
  std::vector<LayerRecord> layers;
  std::uint32_t sequences = 0;
  Seconds began = 0;        ///< of the host's clock, when the step's first layer came
  Seconds listing = 0;      ///< of putting its layers into lists
  Seconds host = 0;         ///< from its first layer to its launch, waits for pages left out
  std::uint32_t parts = 0;  ///< launches that it took
  BelowRecord below;
  StepTimes times;  ///< of all its launches, measured
};

/// Predicted beside measured, of one run. Shared by the machine that writes it and whoever reports;
/// complete once the machine was drained.
struct DecodeLog {
  std::vector<StepRecord> steps;
  std::uint64_t pages_checked = 0;
  std::uint64_t pages_bad = 0;
  std::uint64_t reads_bad = 0;
  double output_error = -1;  ///< of the last step against float64; negative: not looked at
  StepTimes repeated;        ///< medians of the last step again and again, with no host in between
  std::uint32_t captures = 0;  ///< times that the step was captured: 1 unless the batch outgrew it
  std::vector<std::uint64_t> kernel_stamps;  ///< DecodeDevice::kernel_stamps(), if traced
  std::string device;                        ///< name and driver
  Seconds drained = 0;                       ///< of the host's clock, when the last step had ended
};

}  // namespace lehr::runtime::cuda
