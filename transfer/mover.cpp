// SPDX-License-Identifier: Apache-2.0
#include "transfer/mover.hpp"

#include <algorithm>

#include "transfer/clock.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {
namespace {

/// Upper limit of one sleep: a lost wake-up costs this much and never a hang.
constexpr std::int64_t kSliceNs = 5'000'000;

template <class Done>
bool wait_until(int event_fd, std::int64_t bound_ns, Done done) {
  const SteadyClock clock;
  const std::int64_t end = clock.now_ns() + bound_ns;
  for (;;) {
    if (done()) return true;
    const std::int64_t left = end - clock.now_ns();
    if (left <= 0) return false;
    wait_readable({&event_fd, 1}, std::min(left, kSliceNs));
  }
}

}  // namespace

std::size_t Mover::submit(std::span<const Job> jobs) {
  const std::size_t taken = do_submit(jobs);
  accepted_.fetch_add(taken, std::memory_order_relaxed);
  return taken;
}

std::size_t Mover::poll(std::span<Completion> out) {
  const std::size_t count = do_poll(out);
  MoverCounters now;
  for (const Completion& c : out.first(count)) {
    now.finished += c.code == Code::kOk;
    now.cancelled += c.code == Code::kCancelled;
    if (c.code == Code::kOk) now.bytes += c.bytes;
  }
  if (count == 0) return 0;
  finished_.fetch_add(now.finished, std::memory_order_relaxed);
  bytes_.fetch_add(now.bytes, std::memory_order_relaxed);
  cancelled_.fetch_add(now.cancelled, std::memory_order_relaxed);
  failed_.fetch_add(count - now.finished - now.cancelled, std::memory_order_relaxed);
  return count;
}

bool Mover::wait(std::int64_t bound_ns) {
  return wait_until(event_fd(), bound_ns, [this] {
    const Load now = load();
    return now.finished != 0 || now.unfinished == 0;
  });
}

std::size_t Mover::cancel(std::span<const JobId> ids) { return do_cancel(ids); }

bool Mover::drain(std::int64_t bound_ns) {
  return wait_until(event_fd(), bound_ns, [this] { return load().unfinished == 0; });
}

MoverCounters Mover::counters() const {
  return {accepted_.load(std::memory_order_relaxed), finished_.load(std::memory_order_relaxed),
          failed_.load(std::memory_order_relaxed), cancelled_.load(std::memory_order_relaxed),
          bytes_.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Mover>> make_file_mover(const FileMoverConfig& config, std::string& notice) {
  auto ring = make_file_uring(config);
  if (ring) return ring;
  if (ring.error().code != Code::kUnsupported) return ring;
  notice = ring.error().what + "; files are read with pread";
  // Threads stand for depth; more than these only queue in the kernel.
  return make_file_pread({std::min(config.depth, 8U), config.queue});
}

}  // namespace lehr::transfer
