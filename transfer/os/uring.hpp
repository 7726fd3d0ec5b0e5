// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::transfer {

/// One read or write. `tag` comes back with its completion.
struct RingRequest {
  bool write = false;
  int fd = -1;  ///< a registered one is found by itself
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t tag = 0;
  std::uint32_t first_bytes = 0;  ///< fault injection: limit of the first request, 0 = none
};

struct RingCompletion {
  std::uint64_t tag = 0;
  std::uint32_t bytes = 0;  ///< fewer than asked for without an error: the file ended
  int error = 0;            ///< an errno, 0 for none
};

/// Owner of an io_uring with registered files and buffers. Short I/O is resubmitted here, so a
/// completion is final; the completion queue is advanced for every entry, also on errors. A request
/// leaves the caller only when it has its submission entry: start() says no instead of queueing.
/// Not thread safe. Buffers must outlive their completion; the destructor waits for what is in
/// flight.
class Uring {
 public:
  /// Unsupported where the kernel or a sandbox refuses io_uring, or the build lacks liburing.
  static Result<Uring> create(unsigned depth);

  Uring(Uring&&) noexcept;
  Uring& operator=(Uring&&) noexcept;
  ~Uring();

  Status register_files(std::span<const int> fds);
  /// Regions are cut into pieces of at most 1 GiB, the kernel's limit. A request across pieces, or
  /// in no region, takes the unregistered path.
  Status register_buffers(std::span<const std::span<std::byte>> regions);
  /// Readable whenever a completion was added.
  int event_fd() const;

  /// Fills a submission entry; false when `depth` requests are in flight. submit() starts them.
  bool start(const RingRequest& request);
  Status submit();
  /// Collects finished requests and queues the rest of short ones for the next submit(). Never
  /// blocks.
  std::size_t reap(std::span<RingCompletion> out);
  unsigned in_flight() const;

 private:
  struct State;
  explicit Uring(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lehr::transfer
