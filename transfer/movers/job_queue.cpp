// SPDX-License-Identifier: Apache-2.0
#include "transfer/movers/job_queue.hpp"

#include <algorithm>
#include <cerrno>

namespace lehr::transfer {

std::size_t JobQueue::push(std::span<const Job> jobs) {
  const std::size_t room = limit_ - std::min(limit_, unfinished());
  const std::size_t count = std::min(room, jobs.size());
  for (const Job& job : jobs.first(count)) {
    queues_[static_cast<std::size_t>(job.urgency)].push(job);
  }
  return count;
}

bool JobQueue::pop(Job& job) {
  for (auto& queue : queues_) {
    if (queue.empty()) continue;
    job = queue.waiting().front();
    queue.drop(1);
    ++running_;
    return true;
  }
  return false;
}

std::size_t JobQueue::pop_alike(Bytes most_bytes, std::size_t most, std::vector<Job>& jobs) {
  auto& queue = queues_[static_cast<std::size_t>(next_urgency())];
  const std::span<const Job> waiting = queue.waiting();
  if (waiting.empty() || most == 0) return 0;
  const Bytes size = waiting.front().bytes;
  const Bytes fit = size == 0 ? most : std::max<Bytes>(most_bytes / size, 1);
  const auto limit = static_cast<std::size_t>(std::min<Bytes>({fit, most, waiting.size()}));
  std::size_t count = 1;
  while (count < limit && waiting[count].bytes == size) ++count;
  jobs.insert(jobs.end(), waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count));
  queue.drop(count);
  running_ += count;
  return count;
}

void JobQueue::unpop(const Job& job) {
  queues_[static_cast<std::size_t>(job.urgency)].push_front(job);
  --running_;
}

void JobQueue::finish(const Completion& completion) {
  --running_;
  done_.push(completion);
}

void JobQueue::finish(std::span<const Job> jobs, Code code, Reason reason) {
  running_ -= jobs.size();
  for (const Job& job : jobs) {
    done_.push({job.id, code, reason, code == Code::kOk ? job.bytes : 0, 0});
  }
}

std::size_t JobQueue::cancel(std::span<const JobId> ids) {
  std::size_t count = 0;
  for (auto& queue : queues_) {
    queue.erase_if([&](const Job& job) {
      if (std::find(ids.begin(), ids.end(), job.id) == ids.end()) return false;
      done_.push({job.id, Code::kCancelled, Reason::kNone, 0, 0});
      ++count;
      return true;
    });
  }
  return count;
}

std::size_t JobQueue::take(std::span<Completion> out) {
  const std::size_t count = std::min(out.size(), done_.size());
  std::copy_n(done_.waiting().begin(), count, out.begin());
  done_.drop(count);
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
