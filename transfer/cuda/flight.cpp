// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/flight.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace lehr::transfer::cuda {

namespace {

constexpr Bytes kGateBytes = Spares::kAlignment;  ///< before the pairs of a list: the gate's word
/// Pauses between looks at a flight, in proportion to how long it has been waited for: the first
/// finds the shortest moves, the last costs 0.5 % of a core while a flight waits.
constexpr std::chrono::microseconds kFirstLook{20}, kLastLook{500};
constexpr int kLooksInTime = 8;  ///< so it is found at most an eighth late

}  // namespace

FlightLane::FlightLane(std::int32_t device, Stream stream, const std::function<void()>& tell)
    : device_(device), stream_(std::move(stream)), tell_(tell) {
  watcher_ = std::jthread([this] { run(); });
}

FlightLane::~FlightLane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  (void)cudaStreamSynchronize(stream_.get());
}

void FlightLane::watch(SharedEvent event) {
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back(std::move(event));
  }
  changed_.notify_all();
}

void FlightLane::run() {
  (void)cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !watched_.empty(); });
    if (stopping_) return;
    SharedEvent oldest = std::move(watched_.front());
    watched_.pop_front();
    const auto start = std::chrono::steady_clock::now();
    while (cudaEventQuery(oldest->get()) == cudaErrorNotReady) {
      const std::chrono::nanoseconds pause = std::clamp<std::chrono::nanoseconds>(
          (std::chrono::steady_clock::now() - start) / kLooksInTime, kFirstLook, kLastLook);
      if (changed_.wait_for(lock, pause, [&] { return stopping_; })) return;
    }
    lock.unlock();
    oldest.reset();
    if (tell_) tell_();
    lock.lock();
  }
}

CudaFlight::~CudaFlight() {
  if (gate_ != nullptr && !opened_) {
    std::fill(pairs().begin(), pairs().end(), kernels::PagePair{});
    clear_entries();
    open();
    let_go();
    if (!events_.empty()) {
      spares_->give_back_later(std::move(events_), list_);
      return;
    }
  }
  if (!ended_ && !events_.empty()) (void)cudaEventSynchronize(events_.back()->get());
  let_go();
  spares_->give_back(std::move(events_), list_);
}

std::span<kernels::PagePair> CudaFlight::pairs() {
  return {reinterpret_cast<kernels::PagePair*>(list_.memory + kGateBytes), pairs_};
}

std::span<std::byte> CudaFlight::entries() {
  return {list_.memory + kGateBytes + pairs_ * sizeof(kernels::PagePair), entry_bytes_};
}

void CudaFlight::open() {
  opened_ = true;
  if (gate_ != nullptr) gate_->store(1, std::memory_order_release);
}

Result<bool> CudaFlight::ended() {
  if (ended_) return failed_ == cudaSuccess ? Result<bool>(true) : cuda_error(failed_, "a move");
  const cudaError_t status = cudaEventQuery(events_.back()->get());
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  failed_ = status;
  ended_ = true;
  let_go();
  return ended();
}

Status CudaFlight::hold(void* stream, std::size_t cut) {
  const DeviceScope scope(device_);
  LEHR_CUDA_TRY(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream),
                                    events_[std::min(cut, events_.size() - 1)]->get(), 0));
  return {};
}

Status CudaFlight::take_list(const FlightPlan& plan) {
  Bytes entry_bytes = 0;
  for (const SmallWrite& entry : plan.entries) entry_bytes += entry.bytes;
  const Bytes before_entries = kGateBytes + plan.pairs * sizeof(kernels::PagePair);
  LEHR_ASSIGN(list_, spares_->list(before_entries + entry_bytes));
  pairs_ = plan.pairs;
  entry_bytes_ = entry_bytes;
  absent_ = plan.entries;
  clear_entries();
  if (plan.inward) {
    std::memset(list_.memory, 0, before_entries);
    gate_ = new (list_.memory) std::atomic<std::uint32_t>(0);
  } else {
    std::copy(plan.outward.begin(), plan.outward.end(), pairs().begin());
  }
  return {};
}

Status CudaFlight::record(cudaStream_t stream) {
  LEHR_ASSIGN(SharedEvent event, spares_->event());
  const cudaError_t recorded = cudaEventRecord(event->get(), stream);
  if (recorded != cudaSuccess) return cuda_error(recorded, "cudaEventRecord");
  events_.push_back(std::move(event));
  return {};
}

void CudaFlight::count(std::uint32_t enqueued) {
  counted_ += enqueued;
  lane_->enqueued += enqueued;
}

void CudaFlight::clear_entries() {
  std::byte* at = entries().data();
  for (const SmallWrite& entry : absent_) at = std::fill_n(at, entry.bytes, entry.absent);
}

void CudaFlight::let_go() { lane_->enqueued -= std::exchange(counted_, 0); }

}  // namespace lehr::transfer::cuda
