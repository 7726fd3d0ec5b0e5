// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer::cuda {

/// One launch's worth of jobs, with what belongs to it until its event has passed.
struct Batch {
  std::vector<Job> jobs;
  Event done;        ///< blocking: a waiting thread sleeps
  HostBuffer pairs;  ///< PagePair[], pinned
  Event staged;      ///< between the two halves of a staged copy
  DeviceBuffer staging;
  std::uint32_t capacity = 0;  ///< of `pairs`
};

/// The two streams of a lane: `main` orders everything; `side` runs the kernel half of staged
/// copies beside it.
struct Lane {
  Stream main, side;
  std::uint32_t ctas = 0;
};

/// Enqueues a batch's copies; `done` is recorded behind the last of them. `share`: of the CTAs.
Status enqueue(const DeviceMoverConfig& config, const Lane& lane, double share, Batch& batch);

/// Neighbours that are moved as one: both ends continue, and no seam lies between.
struct Run {
  std::byte* from = nullptr;
  std::byte* to = nullptr;
  Bytes bytes = 0;
};
std::vector<Run> merge_runs(const DeviceMoverConfig& config, std::span<Job> jobs);

}  // namespace lehr::transfer::cuda
