// SPDX-License-Identifier: Apache-2.0
#include "transfer/movers/job_queue.hpp"

#include <algorithm>
#include <cerrno>

namespace lehr::transfer {

std::size_t JobQueue::push(std::span<const Job> jobs) {
  const std::size_t room = limit_ - std::min(limit_, unfinished());
  const std::size_t count = std::min(room, jobs.size());
  for (const Job& job : jobs.first(count)) {
    queues_[static_cast<std::size_t>(job.urgency)].push_back(job);
  }
  return count;
}

bool JobQueue::pop(Job& job) {
  for (auto& queue : queues_) {
    if (queue.empty()) continue;
    job = queue.front();
    queue.pop_front();
    ++running_;
    return true;
  }
  return false;
}

void JobQueue::unpop(const Job& job) {
  queues_[static_cast<std::size_t>(job.urgency)].push_front(job);
  --running_;
}

void JobQueue::finish(const Completion& completion) {
  --running_;
  done_.push_back(completion);
}

std::size_t JobQueue::cancel(std::span<const JobId> ids) {
  std::size_t count = 0;
  for (auto& queue : queues_) {
    std::erase_if(queue, [&](const Job& job) {
      if (std::find(ids.begin(), ids.end(), job.id) == ids.end()) return false;
      done_.push_back({job.id, Code::kCancelled, Reason::kNone, 0, 0});
      ++count;
      return true;
    });
  }
  return count;
}

std::size_t JobQueue::take(std::span<Completion> out) {
  const std::size_t count = std::min(out.size(), done_.size());
  std::copy_n(done_.begin(), count, out.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

Completion completion_of(const Job& job, Bytes moved, int os_error) {
  Completion c{job.id, Code::kOk, Reason::kNone, moved, os_error};
  if (os_error != 0) {
    c.code = Code::kIo;
    if (os_error == ENOSPC || os_error == EDQUOT) c.reason = Reason::kNoSpace;
  } else if (moved < job.bytes) {
    c.code = Code::kIo;
    c.reason = Reason::kTruncated;
  }
  return c;
}

}  // namespace lehr::transfer
