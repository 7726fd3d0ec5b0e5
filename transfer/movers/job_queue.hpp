// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <span>

#include "transfer/mover.hpp"

namespace lehr::transfer {

/// Jobs that wait, urgent ones first, and completions that wait to be taken. Not thread safe.
class JobQueue {
 public:
  explicit JobQueue(std::size_t limit) : limit_(limit) {}

  /// Takes jobs from the front while fewer than `limit` wait or run.
  std::size_t push(std::span<const Job> jobs);
  /// The next job to start; false when none waits. It counts as running until finish().
  bool pop(Job& job);
  /// Puts a popped job back to the front of its class: it could not start.
  void unpop(const Job& job);
  void finish(const Completion& completion);
  std::size_t cancel(std::span<const JobId> ids);
  std::size_t take(std::span<Completion> out);

  std::size_t waiting() const { return queues_[0].size() + queues_[1].size(); }
  std::size_t unfinished() const { return waiting() + running_; }
  std::size_t finished() const { return done_.size(); }

 private:
  std::size_t limit_;
  std::size_t running_ = 0;
  std::deque<Job> queues_[2];  ///< by Urgency
  std::deque<Completion> done_;
};

/// A completion for a job that moved all its bytes, or failed with an errno.
Completion completion_of(const Job& job, Bytes moved, int os_error);

}  // namespace lehr::transfer
