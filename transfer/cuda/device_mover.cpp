// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "transfer/cuda/copies.hpp"
#include "transfer/movers/job_queue.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {
namespace {

using cuda::Batch;

constexpr std::size_t kUrgencies = 2;
constexpr Bytes kSmallestJob = 512;  ///< bounds the pairs of a batch

/// Launches batches while fewer than `batches` of their urgency are in flight. Whoever polls sees
/// completions at once; beside that a thread for each urgency sleeps on the oldest event, so that
/// work goes on and waiters wake when nobody polls.
class DeviceMover final : public Mover {
 public:
  DeviceMover(const DeviceMoverConfig& config, EventFd event)
      : config_(config), event_(std::move(event)), queue_(config.batches + config.queue) {
    static constexpr const char* kNames[] = {"copy_engine", "driver_batch", "ring", "staged"};
    traits_.name = kNames[static_cast<std::size_t>(config.copy)];
    constexpr auto kHost = static_cast<std::size_t>(Space::kHostMemory);
    constexpr auto kDevice = static_cast<std::size_t>(Space::kDeviceMemory);
    traits_.moves[kHost][kDevice] = traits_.moves[kDevice][kHost] = true;
    traits_.moves[kDevice][kDevice] = true;
    traits_.depth = config.batches;
    traits_.queue = config.queue;
    traits_.works_unpolled = true;
  }

  ~DeviceMover() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    flying_cv_.notify_all();
    threads_.clear();
    const cuda::DeviceScope scope(config_.device);
    for (const cuda::Lane& lane : lanes_) {
      (void)cudaStreamSynchronize(lane.main.get());
      (void)cudaStreamSynchronize(lane.side.get());
    }
    batches_.clear();
    lanes_ = {};
    (void)cudaGetLastError();
  }

  Status open() {
    const cuda::DeviceScope scope(config_.device);
    int low = 0, high = 0;
    LEHR_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (std::size_t u = 0; u < kUrgencies; ++u) {
      const bool urgent = u == static_cast<std::size_t>(Urgency::kUrgent);
      lanes_[u].ctas =
          urgent ? std::max(config_.urgent_ctas, config_.ring.ctas) : config_.ring.ctas;
      for (cuda::Stream* stream : {&lanes_[u].main, &lanes_[u].side}) {
        cudaStream_t raw = nullptr;
        LEHR_CUDA_TRY(
            cudaStreamCreateWithPriority(&raw, cudaStreamNonBlocking, priority(urgent, low, high)));
        *stream = cuda::Stream(raw);
      }
      for (std::uint32_t i = 0; i < config_.batches; ++i) {
        LEHR_ASSIGN(auto batch, make_batch());
        spare_[u].push_back(batch.get());
        batches_.push_back(std::move(batch));
      }
    }
    for (std::size_t u = 0; u < kUrgencies; ++u) threads_.emplace_back([this, u] { watch(u); });
    return {};
  }

  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override { return {true, {}}; }
  int event_fd() const override { return event_.get(); }

 private:
  /// Numbers fall as priority rises. Above compute, which runs at the lowest: a kernel of equal
  /// priority would wait until all CTAs of the one before have started.
  int priority(bool urgent, int low, int high) const {
    if (urgent) return high;
    return config_.yielding ? low : std::max(high, low - 1);
  }

  Result<std::unique_ptr<Batch>> make_batch() {
    auto batch = std::make_unique<Batch>();
    cudaEvent_t done = nullptr, staged = nullptr;
    LEHR_CUDA_TRY(cudaEventCreateWithFlags(&done, cudaEventDisableTiming | cudaEventBlockingSync));
    batch->done = cuda::Event(done);
    LEHR_CUDA_TRY(cudaEventCreateWithFlags(&staged, cudaEventDisableTiming));
    batch->staged = cuda::Event(staged);
    batch->capacity = static_cast<std::uint32_t>(
        std::clamp<Bytes>(config_.batch_bytes / kSmallestJob, 1, 1U << 16));
    void* pairs = nullptr;
    LEHR_CUDA_TRY(cudaHostAlloc(&pairs, batch->capacity * sizeof(kernels::PagePair),
                                cudaHostAllocPortable | cudaHostAllocMapped));
    batch->pairs = cuda::HostBuffer(pairs);
    if (config_.copy == DeviceCopy::kStaged) {
      void* staging = nullptr;
      LEHR_CUDA_TRY(cudaMalloc(&staging, config_.batch_bytes));
      batch->staging = cuda::DeviceBuffer(staging);
    }
    batch->jobs.reserve(batch->capacity);
    return batch;
  }

  std::size_t do_submit(std::span<const Job> jobs) override {
    const std::lock_guard lock(mutex_);
    const std::size_t count = queue_.push(jobs);
    advance();
    return count;
  }

  std::size_t do_poll(std::span<Completion> out) override {
    const std::lock_guard lock(mutex_);
    ++polls_;
    advance();
    if (queue_.finished() == 0) return 0;
    event_.clear();
    const std::size_t count = queue_.take(out);
    if (queue_.finished() != 0) event_.signal();
    return count;
  }

  std::size_t do_cancel(std::span<const JobId> ids) override {
    const std::lock_guard lock(mutex_);
    const std::size_t count = queue_.cancel(ids);
    if (count != 0) event_.signal();
    return count;
  }

  Load load() override {
    const std::lock_guard lock(mutex_);
    advance();
    return {queue_.unfinished(), queue_.finished()};
  }

  void advance() {
    // An engine polls all its movers, most of which have nothing to do.
    if (queue_.unfinished() == 0) return;
    const cuda::DeviceScope scope(config_.device);
    for (std::size_t u = 0; u < kUrgencies; ++u) collect(u);
    while (launch_one()) {
    }
  }

  /// Ends the batches whose events have passed.
  void collect(std::size_t u) {
    std::erase_if(flying_[u], [&](Batch* batch) {
      const cudaError_t status = cudaEventQuery(batch->done.get());
      if (status == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
      }
      end(*batch, status == cudaSuccess ? Status() : Status(cuda_error(status, "a move")));
      spare_[u].push_back(batch);
      return true;
    });
  }

  void end(Batch& batch, const Status& result) {
    queue_.finish(batch.jobs, result ? Code::kOk : result.error().code,
                  result ? Reason::kNone : result.error().reason);
    batch.jobs.clear();
    event_.signal();
  }

  /// Takes jobs of one urgency and size from the queue and launches them; false when there are
  /// none, or no batch is spare.
  bool launch_one() {
    const Urgency urgency = queue_.next_urgency();
    const auto u = static_cast<std::size_t>(urgency);
    if (queue_.waiting() == 0 || spare_[u].empty()) return false;
    Batch& batch = *spare_[u].back();
    if (queue_.pop_alike(config_.batch_bytes, batch.capacity, batch.jobs) == 0) return false;
    spare_[u].pop_back();
    const double allowed = urgency == Urgency::kUrgent ? 1.0 : share();
    const Status launched = cuda::enqueue(config_, lanes_[u], allowed, batch);
    if (!launched) {
      // Part of it may be on its way: no slot is given back before that has ended.
      (void)cudaStreamSynchronize(lanes_[u].main.get());
      (void)cudaStreamSynchronize(lanes_[u].side.get());
      (void)cudaGetLastError();
      end(batch, launched);
      spare_[u].push_back(&batch);
      return true;
    }
    flying_[u].push_back(&batch);
    flying_cv_.notify_all();
    return true;
  }

  void watch(std::size_t u) {
    (void)cudaSetDevice(config_.device);
    std::unique_lock lock(mutex_);
    for (;;) {
      flying_cv_.wait(lock, [&] { return stopping_ || !flying_[u].empty(); });
      if (stopping_) return;
      Batch* const oldest = flying_[u].front();
      const std::uint64_t polls = polls_;
      lock.unlock();
      (void)cudaEventSynchronize(oldest->done.get());
      lock.lock();
      // Whoever polls without pause does it sooner, on a core that has the queue at hand.
      if (polls_ != polls) {
        flying_cv_.wait_for(lock, std::chrono::microseconds(100), [&] {
          return stopping_ || flying_[u].empty() || flying_[u].front() != oldest;
        });
      }
      advance();
    }
  }

  const DeviceMoverConfig config_;
  MoverTraits traits_;
  EventFd event_;
  std::mutex mutex_;
  std::condition_variable flying_cv_;
  JobQueue queue_;
  std::array<cuda::Lane, kUrgencies> lanes_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::vector<Batch*> spare_[kUrgencies];
  std::vector<Batch*> flying_[kUrgencies];  ///< in order of launch
  std::uint64_t polls_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace

Result<std::unique_ptr<Mover>> make_device_mover(const DeviceMoverConfig& config) {
  if (config.batches == 0 || config.queue == 0 || config.batch_bytes == 0) {
    return invalid("a device mover needs batches, bytes in them, and a queue");
  }
  if (config.batches > DeviceMoverConfig::kMostBatches) {
    return invalid("a device mover of " + std::to_string(config.batches) +
                       " batches: expected at most " +
                       std::to_string(DeviceMoverConfig::kMostBatches),
                   Reason::kOutOfRange);
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || config.device < 0 || config.device >= count) {
    (void)cudaGetLastError();
    return unsupported("no device " + std::to_string(config.device));
  }
  kernels::PageLayout layout = config.layout;
  if (layout.piece_bytes == 0) layout.piece_bytes = 16;
  LEHR_TRY(kernels::check_move({}, layout, config.ring));
  LEHR_ASSIGN(EventFd event, EventFd::create());
  auto mover = std::make_unique<DeviceMover>(config, std::move(event));
  LEHR_TRY(mover->open());
  return std::unique_ptr<Mover>(std::move(mover));
}

}  // namespace lehr::transfer
