// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "transfer/cuda/handles.hpp"

namespace lehr::transfer::cuda {

using SharedEvent = std::shared_ptr<Event>;

/// Events and pinned lists between flights. All that is needed is made at the start: what the
/// driver is asked for later may wait for work of the device, and that for what is being enqueued.
/// Thread safe.
class Spares {
 public:
  static constexpr Bytes kAlignment = 64;  ///< of lists, and what their sizes are rounded up to
  /// A piece of the pinned memory.
  struct List {
    std::byte* memory = nullptr;
    Bytes bytes = 0;
  };

  /// On the current device; once, before all others.
  Status open(Bytes bytes, std::uint32_t events);
  Result<SharedEvent> event();
  /// The first piece that is long enough; kOverBudget while there is none.
  Result<List> list(Bytes bytes);
  void give_back(std::vector<SharedEvent> events, List list);
  /// Once the last of the events has passed.
  void give_back_later(std::vector<SharedEvent> events, List list);

 private:
  void look_later();
  void keep(std::vector<SharedEvent> events, List list);

  std::mutex mutex_;
  HostBuffer memory_;
  std::map<std::byte*, Bytes> free_;  ///< pieces by address; neighbours are one
  std::vector<SharedEvent> events_;
  std::vector<std::pair<std::vector<SharedEvent>, List>> later_;
};

}  // namespace lehr::transfer::cuda
