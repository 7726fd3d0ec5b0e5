// SPDX-License-Identifier: Apache-2.0
#include "transfer/movers/worker_mover.hpp"

#include <algorithm>

namespace lehr::transfer {

Result<std::unique_ptr<Mover>> WorkerMover::create(MoverTraits traits,
                                                   const WorkerMoverConfig& config, Work work,
                                                   std::string notice) {
  if (config.threads == 0 || config.threads > 256 || config.queue == 0) {
    return invalid(std::string(traits.name) + ": needs 1 to 256 threads and a queue");
  }
  traits.depth = config.threads;
  traits.queue = config.queue;
  traits.works_unpolled = true;
  LEHR_ASSIGN(EventFd event, EventFd::create());
  std::unique_ptr<WorkerMover> mover(
      new WorkerMover(traits, std::move(work), std::move(notice), std::move(event)));
  for (std::uint32_t i = 0; i < config.threads; ++i) {
    mover->threads_.emplace_back([m = mover.get()] { m->run(); });
  }
  return std::unique_ptr<Mover>(std::move(mover));
}

WorkerMover::WorkerMover(MoverTraits traits, Work work, std::string notice, EventFd event)
    : traits_(traits),
      work_(std::move(work)),
      notice_(std::move(notice)),
      event_(std::move(event)),
      queue_(std::size_t{traits.depth} + traits.queue) {}

WorkerMover::~WorkerMover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void WorkerMover::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Job job;
    wake_.wait(lock, [this] { return stopping_ || queue_.waiting() != 0; });
    if (stopping_) return;
    if (!queue_.pop(job)) continue;
    lock.unlock();
    const Completion done = work_(job);
    lock.lock();
    queue_.finish(done);
    if (queue_.finished() == 1) event_.signal();
  }
}

std::size_t WorkerMover::do_submit(std::span<const Job> jobs) {
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = queue_.push(jobs);
  }
  if (count > 1) {
    wake_.notify_all();
  } else if (count == 1) {
    wake_.notify_one();
  }
  return count;
}

std::size_t WorkerMover::do_poll(std::span<Completion> out) {
  const std::lock_guard lock(mutex_);
  if (queue_.finished() == 0) return 0;
  event_.clear();
  const std::size_t count = queue_.take(out);
  if (queue_.finished() != 0) event_.signal();
  return count;
}

std::size_t WorkerMover::do_cancel(std::span<const JobId> ids) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = queue_.cancel(ids);
  if (count != 0) event_.signal();
  return count;
}

WorkerMover::Load WorkerMover::load() {
  const std::lock_guard lock(mutex_);
  return {queue_.unfinished(), queue_.finished()};
}

}  // namespace lehr::transfer
