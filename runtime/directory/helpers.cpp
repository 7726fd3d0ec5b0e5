// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory/helpers.hpp"

#include <algorithm>
#include <system_error>

namespace lehr::directory {

namespace {

/// A thread goes through as much in about 30 us, and takes about as long to wake.
constexpr Bytes kWorthAThread = 256 * kKiB;
constexpr std::uint32_t kMostByDefault = 12;  ///< keep up with PCIe 5 (transfer/MEASURED.md)

std::uint32_t default_threads() {
  return std::clamp(std::thread::hardware_concurrency() * 3 / 4, 1U, kMostByDefault);
}

}  // namespace

Helpers::Helpers(std::uint32_t threads) : most_((threads == 0 ? default_threads() : threads) - 1) {}

Helpers::~Helpers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  called_.notify_all();
}

void Helpers::run(std::size_t count, Bytes bytes, const std::function<void(std::size_t)>& work,
                  const std::function<void(std::size_t)>& reached) {
  if (count == 0) return;
  std::unique_lock lock(mutex_);
  task_ = {&work, count, 0, 0, std::vector<bool>(count)};
  call(std::min({most_, static_cast<std::size_t>(bytes / kWorthAThread), count - 1}));
  for (std::size_t told = 0; told < count;) {
    if (!take_one(lock)) advanced_.wait(lock, [&] { return task_.reached > told; });
    if (task_.reached == told) continue;
    told = task_.reached;
    if (!reached) continue;
    lock.unlock();
    reached(told);
    lock.lock();
  }
  wanted_ = 0;
}

/// With the lock. A process that may have no more threads does with those that it has.
void Helpers::call(std::size_t wanted) {
  try {
    while (threads_.size() < wanted) threads_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    wanted = threads_.size();
  }
  wanted_ = wanted;
  for (std::size_t i = 0; i < wanted; ++i) called_.notify_one();
}

void Helpers::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    called_.wait(lock, [&] { return stopping_ || wanted_ > 0; });
    if (stopping_) return;
    --wanted_;
    while (take_one(lock)) {
    }
  }
}

/// False when all of the task has been begun. What `work` points at lives until all of it is done.
bool Helpers::take_one(std::unique_lock<std::mutex>& lock) {
  if (task_.next == task_.count) return false;
  const std::size_t i = task_.next++;
  const auto* const work = task_.work;
  lock.unlock();
  (*work)(i);
  lock.lock();
  task_.done[i] = true;
  if (i != task_.reached) return true;
  while (task_.reached < task_.count && task_.done[task_.reached]) ++task_.reached;
  advanced_.notify_one();
  return true;
}

}  // namespace lehr::directory
