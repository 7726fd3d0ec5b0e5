// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "transfer/address.hpp"

namespace lehr::transfer {

using JobId = std::uint64_t;

/// Bytes to move from one address to another. Both must stay valid until the job's completion.
struct Job {
  JobId id = 0;
  Address source;
  Address destination;
  Bytes bytes = 0;
  Cause cause = Cause::kOther;
  Urgency urgency = Urgency::kBackground;
  std::uint32_t first_bytes = 0;  ///< fault injection: limit of the first request, 0 = none
  /// For a mover that checks contents (MoverTraits::checks): the bytes that count, and, where they
  /// come from a file, what their checksum must be.
  Bytes contents = 0;
  std::uint64_t checksum = 0;
};

/// The end of a job: each accepted job has exactly one. `bytes` may be fewer than asked for only
/// when `code` is not kOk.
struct Completion {
  JobId id = 0;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  Bytes bytes = 0;
  int os_error = 0;
  std::uint64_t checksum = 0;  ///< of what was written to a file, from a mover that checks contents
};

/// What a mover can do, as data.
struct MoverTraits {
  const char* name = "";
  bool moves[kSpaces][kSpaces] = {};  ///< [source][destination]
  std::uint32_t depth = 1;            ///< jobs in flight at once
  std::uint32_t queue = 1;            ///< jobs accepted beyond those
  bool works_unpolled = false;        ///< queued jobs start without a call to poll()
  bool checks = false;  ///< verifies contents of files on their way; wrong ones end as kCorrupt
};

struct Probe {
  bool usable = false;
  std::string why;  ///< the reason when it is not, or what was given up when it is
};

struct MoverCounters {
  std::uint64_t accepted = 0, finished = 0, failed = 0, cancelled = 0;
  std::uint64_t bytes = 0;  ///< moved by finished jobs
};

/// A back end that moves bytes. The public calls count and check; a back end implements the private
/// ones. Thread safe. Calls never block except wait() and drain(), which have a bound.
class Mover {
 public:
  virtual ~Mover() = default;

  virtual const MoverTraits& traits() const = 0;
  virtual Probe probe() const = 0;
  /// Readable when poll() may have something; for poll(2), epoll or Asio. -1: none.
  virtual int event_fd() const = 0;

  /// Accepts jobs from the front as far as the queue has room, and returns how many.
  /// Urgent jobs overtake background jobs that have not started.
  std::size_t submit(std::span<const Job> jobs);
  /// Takes completions, and lets queued jobs start.
  std::size_t poll(std::span<Completion> out);
  /// Waits until poll() has something or nothing is outstanding; false when the bound passed first.
  bool wait(std::int64_t bound_ns);
  /// Cancels those of the jobs that have not started; they complete with kCancelled. Returns how
  /// many.
  std::size_t cancel(std::span<const JobId> ids);
  /// Waits until every accepted job has completed (completions stay for poll()); false past the
  /// bound.
  bool drain(std::int64_t bound_ns);
  MoverCounters counters() const;
  /// Share of its means (SMs, say) that background jobs may use, (0, 1].
  void set_share(double share) { share_.store(share, std::memory_order_relaxed); }

 protected:
  double share() const { return share_.load(std::memory_order_relaxed); }
  struct Load {
    std::size_t unfinished = 0;  ///< queued or in flight
    std::size_t finished = 0;    ///< waiting for poll()
  };

 private:
  virtual std::size_t do_submit(std::span<const Job> jobs) = 0;
  virtual std::size_t do_poll(std::span<Completion> out) = 0;
  virtual std::size_t do_cancel(std::span<const JobId> ids) = 0;
  virtual Load load() = 0;  ///< lets queued jobs start, too

  std::atomic<std::uint64_t> accepted_{0}, finished_{0}, failed_{0}, cancelled_{0}, bytes_{0};
  std::atomic<double> share_{1.0};
};

/// Files that a file mover will be asked for, and memory that it may register.
struct FileMoverConfig {
  std::vector<int> files;
  std::vector<std::span<std::byte>> buffers;
  std::uint32_t depth = 64;
  std::uint32_t queue = 1024;
};

struct WorkerMoverConfig {
  std::uint32_t threads = 1;
  std::uint32_t queue = 1024;
};

/// memcpy between host memories by threads of its own.
Result<std::unique_ptr<Mover>> make_host_copy(const WorkerMoverConfig& config);
/// pread and pwrite by threads of its own; works everywhere.
Result<std::unique_ptr<Mover>> make_file_pread(const WorkerMoverConfig& config);
/// io_uring with registered files and buffers; kUnsupported where it is refused.
Result<std::unique_ptr<Mover>> make_file_uring(const FileMoverConfig& config);

/// The first file mover that works here: io_uring, else pread. `notice` says why the
/// first was passed over; what the chosen one had to give up is in its probe().
Result<std::unique_ptr<Mover>> make_file_mover(const FileMoverConfig& config, std::string& notice);

class FaultInjector;
class Clock;
/// `inner` with the faults of a plan; the injector and the clock must outlive it.
std::unique_ptr<Mover> make_faulty(std::unique_ptr<Mover> inner, FaultInjector& injector,
                                   const Clock& clock);

}  // namespace lehr::transfer
