// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "transfer/cuda/handles.hpp"
#include "transfer/device.hpp"

namespace lehr::transfer {
namespace {

class RegisteredMemory final : public PinnedMemory {
 public:
  RegisteredMemory(HostMemory memory, const PinnedMemoryConfig& config, Bytes chunk)
      : memory_(std::move(memory)), config_(config), chunk_(chunk) {
    worker_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~RegisteredMemory() override {
    worker_.request_stop();
    worker_.join();
    for (Bytes at = 0; at < ready_; at += chunk_) (void)cudaHostUnregister(memory_.data() + at);
    (void)cudaGetLastError();
  }

  std::byte* base() const override { return memory_.data(); }
  Bytes size() const override { return memory_.size(); }
  Bytes chunk_bytes() const override { return chunk_; }
  Bytes ready_bytes() const override { return ready_.load(std::memory_order_acquire); }

  Status wait(std::int64_t bound_ns) override {
    std::unique_lock lock(mutex_);
    const bool ended =
        changed_.wait_for(lock, std::chrono::nanoseconds(bound_ns), [&] { return ended_; });
    if (!ended) {
      return refused(Reason::kPending, std::to_string(ready_bytes()) + " of " +
                                           std::to_string(size()) + " bytes are registered");
    }
    return result_;
  }

  std::vector<std::string> notices() const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> all = memory_.notices();
    if (!result_) all.push_back(result_.error().what);
    return all;
  }

 private:
  void run(const std::stop_token& stop) {
    Status result;
    std::uint32_t chunk = 0;
    for (Bytes at = 0; at < size() && result && !stop.stop_requested(); at += chunk_) {
      const Bytes bytes = std::min(chunk_, size() - at);
      make_present(memory_.data() + at, bytes, std::max(1U, config_.memory.touch_threads));
      result = ++chunk == config_.fail_chunk_nth
                   ? Status(cuda_error(cudaErrorMemoryAllocation, "cudaHostRegister (injected)"))
                   : pin(memory_.data() + at, bytes);
      if (result) ready_.store(at + bytes, std::memory_order_release);
    }
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    ended_ = true;
    changed_.notify_all();
  }

  static Status pin(std::byte* at, Bytes bytes) {
    LEHR_CUDA_TRY(cudaHostRegister(at, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    return {};
  }

  HostMemory memory_;
  const PinnedMemoryConfig config_;
  const Bytes chunk_;
  std::atomic<Bytes> ready_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  Status result_;
  std::jthread worker_;
};

}  // namespace

Result<std::shared_ptr<PinnedMemory>> PinnedMemory::create(const PinnedMemoryConfig& config) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return unsupported("no device that could use pinned memory");
  }
  // Pieces start and end at pages of the system and at pages of the arena.
  const Bytes step = std::lcm(std::max<Bytes>(config.page_stride, 1), Bytes{4096});
  const Bytes chunk = std::max(step, std::min(config.chunk_bytes, 64 * kGiB) / step * step);
  HostMemoryConfig host = config.memory;
  host.present = false;
  LEHR_ASSIGN(HostMemory memory, HostMemory::create(host));
  return std::shared_ptr<PinnedMemory>(
      std::make_shared<RegisteredMemory>(std::move(memory), config, chunk));
}

MemoryRegion region_of(const std::shared_ptr<PinnedMemory>& memory) {
  MemoryRegion region;
  region.base = memory->base();
  region.bytes = memory->size();
  region.owner = memory;
  region.notices = memory->notices();
  return region;
}

}  // namespace lehr::transfer
