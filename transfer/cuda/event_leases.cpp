// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {

struct EventLeases::State {
  struct Group {
    cuda::Event event;
    std::vector<Lease> leases;
  };
  std::deque<Group> groups;
  std::vector<cuda::Event> spare;
};

EventLeases::EventLeases() : state_(std::make_unique<State>()) {}

EventLeases::~EventLeases() {
  for (State::Group& group : state_->groups) (void)cudaEventSynchronize(group.event.get());
}

Status EventLeases::after(void* stream, std::vector<Lease> leases) {
  State::Group group;
  if (state_->spare.empty()) {
    cudaEvent_t raw = nullptr;
    LEHR_CUDA_TRY(cudaEventCreateWithFlags(&raw, cudaEventDisableTiming));
    group.event = cuda::Event(raw);
  } else {
    group.event = std::move(state_->spare.back());
    state_->spare.pop_back();
  }
  group.leases = std::move(leases);
  const cudaError_t recorded =
      cudaEventRecord(group.event.get(), static_cast<cudaStream_t>(stream));
  if (recorded != cudaSuccess) {
    // Without an event nobody can tell when the work is done: wait for all of it, then say so.
    (void)cudaDeviceSynchronize();
    return cuda_error(recorded, "cudaEventRecord");
  }
  state_->groups.push_back(std::move(group));
  return {};
}

std::size_t EventLeases::poll() {
  auto& groups = state_->groups;
  // Streams end in any order: each group is asked for itself.
  std::erase_if(groups, [&](State::Group& group) {
    // A failed stream runs nothing more, so nobody reads these slots either.
    if (cudaEventQuery(group.event.get()) == cudaErrorNotReady) return false;
    state_->spare.push_back(std::move(group.event));
    return true;
  });
  (void)cudaGetLastError();
  return groups.size();
}

}  // namespace lehr::transfer
