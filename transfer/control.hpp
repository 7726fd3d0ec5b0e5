// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "transfer/engine.hpp"

namespace lehr::transfer {

/// A thread that keeps an engine moving while nobody polls it: it sleeps until a mover's or a
/// tier's event descriptor is readable, or the tick passes (pacing and held background work wait
/// for time, not for events). The engine must outlive it. At most one loop an engine.
class ControlLoop {
 public:
  static Result<std::unique_ptr<ControlLoop>> start(TransferEngine& engine,
                                                    std::int64_t tick_ns = 1'000'000);
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;
  /// Stops and joins; the engine goes on when polled.
  ~ControlLoop();

 private:
  struct State;
  explicit ControlLoop(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lehr::transfer
