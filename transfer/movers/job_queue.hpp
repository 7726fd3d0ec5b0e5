// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "transfer/mover.hpp"

namespace lehr::transfer {

/// First in, first out, in one piece of memory: bulk in and out cost a copy. Amortised O(1) an
/// item; the room of what was taken is used again when it is the larger half.
template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  std::size_t size() const { return items_.size() - head_; }
  std::span<const T> waiting() const { return std::span(items_).subspan(head_); }

  void push(const T& item) { items_.push_back(item); }
  void push(std::span<const T> items) { items_.insert(items_.end(), items.begin(), items.end()); }
  /// Back to the front: it was just taken.
  void push_front(const T& item) {
    if (head_ != 0) {
      items_[--head_] = item;
    } else {
      items_.insert(items_.begin(), item);
    }
  }
  void drop(std::size_t count) {
    head_ += count;
    if (head_ == items_.size()) {
      items_.clear();
      head_ = 0;
    } else if (head_ > 4096 && head_ > items_.size() / 2) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }
  template <class Predicate>
  void erase_if(Predicate predicate) {
    const auto first = items_.begin() + static_cast<std::ptrdiff_t>(head_);
    items_.erase(std::remove_if(first, items_.end(), predicate), items_.end());
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

/// Jobs that wait, urgent ones first, and completions that wait to be taken. Not thread safe.
class JobQueue {
 public:
  explicit JobQueue(std::size_t limit) : limit_(limit) {}

  /// Takes jobs from the front while fewer than `limit` wait or run.
  std::size_t push(std::span<const Job> jobs);
  /// The next job to start; false when none waits. It counts as running until finish().
  bool pop(Job& job);
  /// The next jobs to start, as long as they are of the first one's urgency and size, and fit
  /// `most_bytes` (one always does) and `most`. They count as running until finish().
  std::size_t pop_alike(Bytes most_bytes, std::size_t most, std::vector<Job>& jobs);
  /// The urgency of the next job; background when none waits.
  Urgency next_urgency() const {
    return queues_[0].empty() ? Urgency::kBackground : Urgency::kUrgent;
  }
  /// Puts a popped job back to the front of its class: it could not start.
  void unpop(const Job& job);
  void finish(const Completion& completion);
  /// Jobs that ended together.
  void finish(std::span<const Job> jobs, Code code, Reason reason);
  std::size_t cancel(std::span<const JobId> ids);
  std::size_t take(std::span<Completion> out);

  std::size_t waiting() const { return queues_[0].size() + queues_[1].size(); }
  std::size_t unfinished() const { return waiting() + running_; }
  std::size_t finished() const { return done_.size(); }

 private:
  std::size_t limit_;
  std::size_t running_ = 0;
  Fifo<Job> queues_[2];  ///< by Urgency
  Fifo<Completion> done_;
};

/// A completion for a job that moved all its bytes, or failed with an errno.
Completion completion_of(const Job& job, Bytes moved, int os_error);

}  // namespace lehr::transfer
