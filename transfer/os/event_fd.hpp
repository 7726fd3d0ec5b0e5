// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <span>

#include <poll.h>
#include <sys/eventfd.h>

#include "transfer/os/fd.hpp"

namespace lehr::transfer {

/// Owner of an eventfd: a wake-up that poll(2), epoll and Asio can all wait on.
class EventFd {
 public:
  static Result<EventFd> create() {
    Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd) return os_error("eventfd", errno);
    return EventFd(std::move(fd));
  }

  int get() const { return fd_.get(); }

  void signal() const {
    const std::uint64_t one = 1;
    // Fails only when the counter is full, and then the descriptor is readable anyway.
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
  }
  void clear() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof count);
  }

 private:
  explicit EventFd(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

/// Waits until one of at most 16 descriptors is readable or `bound_ns` passed; negative ones are
/// skipped.
inline bool wait_readable(std::span<const int> fds, std::int64_t bound_ns) {
  std::array<pollfd, 16> entries{};
  const std::size_t count = std::min(fds.size(), entries.size());
  for (std::size_t i = 0; i < count; ++i) entries[i] = {fds[i], POLLIN, 0};
  bound_ns = std::max<std::int64_t>(bound_ns, 0);
  const timespec limit{bound_ns / 1'000'000'000, bound_ns % 1'000'000'000};
  return ::ppoll(entries.data(), count, &limit, nullptr) > 0;
}

}  // namespace lehr::transfer
