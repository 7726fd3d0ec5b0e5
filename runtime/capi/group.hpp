// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/capi/instance.hpp"
#include "runtime/serving/serving_group.hpp"

namespace lehr::capi {

/// What a lehr_group handle stands for. Its calls take turns.
struct Group {
  explicit Group(std::uint32_t seed) : sequences(seed) {}

  std::uint8_t tag = 0;
  MachineKind machine = MachineKind::kHost;
  std::vector<std::int32_t> gpus;  ///< of each device; -1 where it is none
  KvGeometry geometry;
  std::mutex mutex;
  std::unique_ptr<serving::ServingGroup> serving;
  directory::SlotMap<serving::SequenceId> sequences;
  std::string broken;  ///< why nothing but closing is possible any more
};

/// One configuration a device; `weights` empty: equal.
Result<std::shared_ptr<Group>> open_group(const std::vector<config::Config>& configs,
                                          serving::Split split, std::vector<double> weights,
                                          std::uint32_t seed);

}  // namespace lehr::capi
