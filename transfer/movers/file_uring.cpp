// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "transfer/movers/job_queue.hpp"
#include "transfer/os/uring.hpp"

namespace lehr::transfer {
namespace {

/// Whoever calls drives the ring: there is no thread between a completion and its taker. Jobs
/// beyond the ring's depth start at the next submit(), poll(), wait() or drain().
class UringMover final : public Mover {
 public:
  UringMover(Uring ring, const FileMoverConfig& config, std::string notice)
      : ring_(std::move(ring)),
        queue_(std::size_t{config.depth} + config.queue),
        running_(config.depth),
        notice_(std::move(notice)) {
    traits_.name = "file_uring";
    const auto host = static_cast<std::size_t>(Space::kHostMemory);
    const auto file = static_cast<std::size_t>(Space::kFile);
    traits_.moves[host][file] = traits_.moves[file][host] = true;
    traits_.depth = config.depth;
    traits_.queue = config.queue;
    for (std::uint32_t i = config.depth; i-- > 0;) free_.push_back(i);
  }

  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override { return {true, notice_}; }
  int event_fd() const override { return ring_.event_fd(); }

 private:
  std::size_t do_submit(std::span<const Job> jobs) override {
    const std::lock_guard lock(mutex_);
    const std::size_t count = queue_.push(jobs);
    start_queued();
    return count;
  }

  std::size_t do_poll(std::span<Completion> out) override {
    const std::lock_guard lock(mutex_);
    advance();
    return queue_.take(out);
  }

  std::size_t do_cancel(std::span<const JobId> ids) override {
    const std::lock_guard lock(mutex_);
    return queue_.cancel(ids);
  }

  Load load() override {
    const std::lock_guard lock(mutex_);
    advance();
    return {queue_.unfinished(), queue_.finished()};
  }

  void advance() {
    // Also when nothing is in flight: the wake-up of a completion that was seen early comes late.
    std::array<RingCompletion, 64> batch;
    std::size_t count = 0;
    do {
      count = ring_.reap(batch);
      for (const RingCompletion& done : std::span(batch).first(count)) {
        const auto index = static_cast<std::uint32_t>(done.tag);
        queue_.finish(completion_of(running_[index], done.bytes, done.error));
        free_.push_back(index);
      }
    } while (count == batch.size());
    start_queued();
  }

  void start_queued() {
    Job job;
    while (!free_.empty() && queue_.pop(job)) {
      const std::uint32_t index = free_.back();
      const bool write = job.destination.space == Space::kFile;
      const Address& file = write ? job.destination : job.source;
      if (job.bytes > kGiB) {
        queue_.finish({job.id, Code::kInvalid, Reason::kOutOfRange, 0, 0});
        continue;
      }
      const RingRequest request{write,
                                file.unit,
                                write ? job.source.pointer : job.destination.pointer,
                                static_cast<std::uint32_t>(job.bytes),
                                file.offset,
                                index,
                                job.first_bytes};
      if (!ring_.start(request)) {
        queue_.unpop(job);
        break;
      }
      running_[index] = job;
      free_.pop_back();
    }
    // A failure here leaves the entries queued in the ring; the next call tries again.
    [[maybe_unused]] const Status submitted = ring_.submit();
  }

  MoverTraits traits_;
  std::mutex mutex_;
  Uring ring_;
  JobQueue queue_;
  std::vector<Job> running_;
  std::vector<std::uint32_t> free_;
  std::string notice_;
};

}  // namespace

Result<std::unique_ptr<Mover>> make_file_uring(const FileMoverConfig& config) {
  if (config.queue == 0) return invalid("file_uring: needs a queue");
  LEHR_ASSIGN(Uring ring, Uring::create(config.depth));
  std::string notice;
  if (!config.files.empty()) {
    if (const Status done = ring.register_files(config.files); !done) {
      notice = done.error().what + "; files are used unregistered";
    }
  }
  if (!config.buffers.empty()) {
    if (const Status done = ring.register_buffers(config.buffers); !done) {
      if (!notice.empty()) notice += ". ";
      notice += done.error().what + "; buffers are used unregistered";
    }
  }
  return std::unique_ptr<Mover>(new UringMover(std::move(ring), config, std::move(notice)));
}

}  // namespace lehr::transfer
