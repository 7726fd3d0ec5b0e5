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

struct StepRecord {
  std::vector<LayerRecord> layers;
  Seconds host = 0;  ///< of deciding and listing, from the step's first layer to its launch
  StepTimes times;   ///< step, measured
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
};

}  // namespace lehr::runtime::cuda
