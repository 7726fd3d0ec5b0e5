// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transfer/movers/job_queue.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {

/// A mover whose jobs are done one after another by threads of its own.
class WorkerMover final : public Mover {
 public:
  using Work = std::function<Completion(const Job& job)>;

  static Result<std::unique_ptr<Mover>> create(MoverTraits traits, const WorkerMoverConfig& config,
                                               Work work, std::string notice = {});
  ~WorkerMover() override;

  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override { return {true, notice_}; }
  int event_fd() const override { return event_.get(); }

 private:
  WorkerMover(MoverTraits traits, Work work, std::string notice, EventFd event);
  std::size_t do_submit(std::span<const Job> jobs) override;
  std::size_t do_poll(std::span<Completion> out) override;
  std::size_t do_cancel(std::span<const JobId> ids) override;
  Load load() override;
  void run();

  const MoverTraits traits_;
  const Work work_;
  const std::string notice_;
  EventFd event_;
  std::mutex mutex_;
  std::condition_variable wake_;
  JobQueue queue_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lehr::transfer
