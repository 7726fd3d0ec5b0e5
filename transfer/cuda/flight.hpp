// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "transfer/block_lanes.hpp"
#include "transfer/cuda/spares.hpp"

namespace lehr::transfer::cuda {

/// A stream, and a thread that looks at the oldest flight's last event, ever less often, and tells
/// of its end. No call back by the driver: those take turns with everybody's in the process.
class FlightLane {
 public:
  FlightLane(std::int32_t device, Stream stream, const std::function<void()>& tell);
  ~FlightLane();
  FlightLane(const FlightLane&) = delete;
  FlightLane& operator=(const FlightLane&) = delete;

  cudaStream_t stream() const { return stream_.get(); }
  void watch(SharedEvent event);

  std::atomic<std::uint32_t> enqueued{0};

 private:
  void run();

  std::int32_t device_;
  Stream stream_;
  const std::function<void()>& tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SharedEvent> watched_;
  bool stopping_ = false;
  std::jthread watcher_;
};

/// What was enqueued of a plan on a lane: its list and gate in pinned memory, an event for each
/// cut.
class CudaFlight final : public Flight {
 public:
  CudaFlight(std::int32_t device, std::shared_ptr<Spares> spares, std::shared_ptr<FlightLane> lane)
      : device_(device), spares_(std::move(spares)), lane_(std::move(lane)) {}
  ~CudaFlight() override;

  std::span<kernels::PagePair> pairs() override;
  std::span<std::byte> entries() override;
  void open() override;
  Result<bool> ended() override;
  Status hold(void* stream, std::size_t cut) override;
  void* event() override { return events_.back()->get(); }

  const SharedEvent& last() const { return events_.back(); }
  /// A list of pairs in pinned memory, and, where the flight waits to be opened, its gate.
  Status take_list(const FlightPlan& plan);
  Status record(cudaStream_t stream);
  void count(std::uint32_t enqueued);
  std::uint64_t gate() const { return reinterpret_cast<std::uint64_t>(gate_); }

 private:
  void clear_entries();
  void let_go();

  const std::int32_t device_;
  std::shared_ptr<Spares> spares_;
  std::shared_ptr<FlightLane> lane_;
  Spares::List list_;
  std::uint32_t pairs_ = 0;
  Bytes entry_bytes_ = 0;
  std::vector<SmallWrite> absent_;
  std::atomic<std::uint32_t>* gate_ = nullptr;
  bool opened_ = false;
  std::vector<SharedEvent> events_;  ///< of cuts
  bool ended_ = false;
  cudaError_t failed_ = cudaSuccess;
  std::uint32_t counted_ = 0;
};

}  // namespace lehr::transfer::cuda
