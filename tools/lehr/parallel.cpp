// SPDX-License-Identifier: Apache-2.0
#include "tools/lehr/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <time.h>

namespace lehr::tools {

void parallel(std::size_t count, const std::function<void(std::size_t)>& work,
              const std::function<void(double)>& done) {
  std::atomic<std::size_t> next{0};
  std::mutex lock;
  std::size_t finished = 0;
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      work(i);
      const std::scoped_lock held(lock);
      done(static_cast<double>(++finished) / static_cast<double>(count));
    }
  };
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min(cores, count); ++i) threads.emplace_back(run);
  run();
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace lehr::tools
