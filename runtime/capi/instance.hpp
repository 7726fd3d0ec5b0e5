// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "runtime/config/config.hpp"
#include "runtime/contents/contents.hpp"
#include "runtime/directory/service.hpp"
#include "runtime/directory/slot_map.hpp"
#include "runtime/runtime.hpp"
#include "transfer/mover_choice.hpp"

namespace lehr::capi {

enum class MachineKind : std::int32_t { kSim = 0, kHost = 1, kCuda = 2 };

/// What a lehr_runtime handle stands for.
struct Instance {
  explicit Instance(std::uint32_t handle_seed) : seed(handle_seed), sequences(handle_seed) {}

  std::uint32_t seed;
  std::uint8_t tag = 0;
  MachineKind machine = MachineKind::kSim;
  config::Config config;
  placement::Platform platform;
  std::vector<transfer::MeasuredWay> movers;  ///< of the platform's links, as its profile has them

  // Step level; absent without a geometry. Its calls take turns.
  std::mutex step_mutex;
  std::unique_ptr<contents::Contents> contents;  ///< null where pages hold patterns or nothing
  std::unique_ptr<runtime::Runtime> step;
  directory::SlotMap<runtime::SequenceId> sequences;
  std::string step_broken;  ///< why nothing but closing is possible any more

  // Placement level; absent without placement.block_bytes. Has its own lock.
  std::unique_ptr<directory::Service> placement;
};

/// Makes what the configuration asks for.
Result<std::shared_ptr<Instance>> open_instance(const config::Config& config, std::uint32_t seed);

}  // namespace lehr::capi
