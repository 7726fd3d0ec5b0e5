// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <mutex>
#include <unordered_map>

#include <unistd.h>

#include "transfer/clock.hpp"
#include "transfer/faults.hpp"
#include "transfer/mover.hpp"

namespace lehr::transfer {
namespace {

FaultOp op_of(const Job& job) {
  if (job.source.space == Space::kFile) return FaultOp::kRead;
  return job.destination.space == Space::kFile ? FaultOp::kWrite : FaultOp::kCopy;
}

/// Flips a bit in the middle of what a job wrote, through the page cache for files.
void flip_bit(const Job& job) {
  const Bytes middle = job.bytes / 2;
  if (job.destination.space == Space::kHostMemory) {
    job.destination.pointer[middle] ^= std::byte{1};
  } else if (job.destination.space == Space::kFile) {
    // A block at a time: the descriptor may be open with O_DIRECT.
    alignas(4096) std::array<std::byte, 4096> block;
    const auto at =
        static_cast<off_t>((job.destination.offset + middle) / block.size() * block.size());
    if (::pread(job.destination.unit, block.data(), block.size(), at) !=
        static_cast<ssize_t>(block.size())) {
      return;
    }
    block[0] ^= std::byte{1};
    [[maybe_unused]] const auto wrote =
        ::pwrite(job.destination.unit, block.data(), block.size(), at);
  }
}

class FaultyMover final : public Mover {
 public:
  FaultyMover(std::unique_ptr<Mover> inner, FaultInjector& injector, const Clock& clock)
      : inner_(std::move(inner)), injector_(injector), clock_(clock) {}

  const MoverTraits& traits() const override { return inner_->traits(); }
  Probe probe() const override { return inner_->probe(); }
  int event_fd() const override { return inner_->event_fd(); }

 private:
  struct Marked {
    Job job;
    Fault fault;
  };
  struct Held {
    Completion completion;
    std::int64_t due_ns;  ///< kReorder: far away, let go by a later completion
  };
  static constexpr std::int64_t kOvertaken = std::numeric_limits<std::int64_t>::max();

  std::size_t do_submit(std::span<const Job> jobs) override {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (!submit_one(jobs[i])) return i;
    }
    return jobs.size();
  }

  /// A refused job keeps its fault for the next try, so that counts do not depend on queue lengths.
  bool submit_one(Job job) {
    std::optional<Fault> fault;
    if (refused_id_ == job.id) {
      fault = refused_fault_;
    } else {
      fault = injector_.next(op_of(job));
    }
    refused_id_ = 0;
    if (fault && fails_at_once(job, *fault)) return true;
    if (fault && fault->kind == FaultKind::kShort) {
      job.first_bytes = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, fault->amount));
    }
    if (inner_->submit({&job, 1}) == 0) {
      refused_id_ = job.id;
      refused_fault_ = fault;
      return false;
    }
    if (fault) marked_.emplace(job.id, Marked{job, *fault});
    return true;
  }

  bool fails_at_once(const Job& job, const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kIoError:
        ready_.push_back({job.id, Code::kIo, Reason::kNone, 0, EIO});
        return true;
      case FaultKind::kNoSpace:
        ready_.push_back({job.id, Code::kIo, Reason::kNoSpace, 0, ENOSPC});
        return true;
      case FaultKind::kTruncate:
        ready_.push_back({job.id, Code::kIo, Reason::kTruncated, job.bytes / 2, 0});
        return true;
      default:
        return false;
    }
  }

  std::size_t do_poll(std::span<Completion> out) override {
    const std::lock_guard lock(mutex_);
    advance();
    const std::size_t count = std::min(out.size(), ready_.size());
    std::copy_n(ready_.begin(), count, out.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  std::size_t do_cancel(std::span<const JobId> ids) override {
    const std::lock_guard lock(mutex_);
    return inner_->cancel(ids);
  }

  Load load() override {
    const std::lock_guard lock(mutex_);
    advance();
    const MoverCounters c = inner_->counters();
    const std::uint64_t taken = c.finished + c.failed + c.cancelled;
    return {static_cast<std::size_t>(c.accepted - taken) + held_.size(), ready_.size()};
  }

  void advance() {
    std::array<Completion, 64> batch;
    std::size_t count = 0;
    do {
      count = inner_->poll(batch);
      for (const Completion& done : std::span(batch).first(count)) arrived(done);
    } while (count == batch.size());
    const MoverCounters c = inner_->counters();
    const bool alone = c.accepted == c.finished + c.failed + c.cancelled;
    std::erase_if(held_, [&](const Held& h) {
      const bool let_go =
          h.due_ns == kOvertaken ? alone || overtaken_ : clock_.now_ns() >= h.due_ns;
      if (let_go) ready_.push_back(h.completion);
      return let_go;
    });
    overtaken_ = false;
  }

  void arrived(const Completion& done) {
    const auto found = marked_.find(done.id);
    if (found == marked_.end()) {
      ready_.push_back(done);
      overtaken_ = true;
      return;
    }
    const Marked marked = found->second;
    marked_.erase(found);
    if (marked.fault.kind == FaultKind::kSlow) {
      held_.push_back(
          {done, clock_.now_ns() + static_cast<std::int64_t>(marked.fault.amount) * 1000});
    } else if (marked.fault.kind == FaultKind::kReorder) {
      held_.push_back({done, kOvertaken});
    } else {
      if (marked.fault.kind == FaultKind::kBitFlip && done.code == Code::kOk) flip_bit(marked.job);
      ready_.push_back(done);
      overtaken_ = true;
    }
  }

  std::unique_ptr<Mover> inner_;
  FaultInjector& injector_;
  const Clock& clock_;
  std::mutex mutex_;
  std::unordered_map<JobId, Marked> marked_;
  std::vector<Held> held_;
  std::deque<Completion> ready_;
  bool overtaken_ = false;
  JobId refused_id_ = 0;
  std::optional<Fault> refused_fault_;
};

}  // namespace

std::unique_ptr<Mover> make_faulty(std::unique_ptr<Mover> inner, FaultInjector& injector,
                                   const Clock& clock) {
  return std::make_unique<FaultyMover>(std::move(inner), injector, clock);
}

}  // namespace lehr::transfer
