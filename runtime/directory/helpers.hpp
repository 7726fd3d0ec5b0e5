// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/units.hpp"

namespace lehr::directory {

/// Threads that take a part of one thread's work. None is started before there is enough to do for
/// it, and they sleep in between. Used by one thread.
class Helpers {
 public:
  /// Threads that may work at once, the caller's own included. 0: three of four cores, at
  /// most 12.
  explicit Helpers(std::uint32_t threads);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  /// Calls `work(i)` once for each i < `count`, begun in ascending order, on several threads if
  /// `bytes`, which all of it has to go through, are worth it; returns when all are done.
  /// `reached(n)` comes on the caller's thread while others work: the first n are done. n only
  /// grows, and is `count` in the end.
  void run(std::size_t count, Bytes bytes, const std::function<void(std::size_t)>& work,
           const std::function<void(std::size_t)>& reached = {});

  std::size_t started() const { return threads_.size(); }

 private:
  struct Task {
    const std::function<void(std::size_t)>* work = nullptr;
    std::size_t count = 0;
    std::size_t next = 0;     ///< nobody has begun with it
    std::size_t reached = 0;  ///< all before it are done
    std::vector<bool> done;
  };

  void call(std::size_t wanted);
  void help();
  bool take_one(std::unique_lock<std::mutex>& lock);

  const std::size_t most_;  ///< beside the caller's
  std::mutex mutex_;
  std::condition_variable called_;
  std::condition_variable advanced_;
  Task task_;
  std::size_t wanted_ = 0;  ///< helpers that were called and have not come yet
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lehr::directory
