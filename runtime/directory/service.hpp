// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/directory/block_store.hpp"
#include "runtime/directory/directory.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::directory {

struct ServiceOptions {
  DirectoryOptions directory;
  std::optional<BlockStoreOptions> store;  ///< absent: decides only, moves nothing
};

/// A directory that several threads may use, and the thread that carries its jobs out. The lock is
/// held for bookkeeping only, never while bytes move. Thread-safe.
class Service {
 public:
  static Result<std::unique_ptr<Service>> create(const ServiceOptions& options);
  /// Queued jobs are cancelled, running ones end first.
  ~Service();

  /// Runs `use(Directory&)` under the lock.
  template <class Use>
  auto with(Use use) {
    const std::lock_guard<std::mutex> hold(mutex_);
    return use(directory_);
  }
  /// The same if the lock is to be had within a bounded number of tries; else nothing, and false.
  template <class Use>
  bool try_with(Use use) {
    for (int i = 0; i < kTries; ++i) {
      if (mutex_.try_lock()) {
        const std::lock_guard<std::mutex> hold(mutex_, std::adopt_lock);
        use(directory_);
        return true;
      }
      std::this_thread::yield();
    }
    return false;
  }

  Status submit(JobId job);
  Status cancel(JobId job);
  Status complete(JobId job, std::span<const ItemOutcome> outcomes);
  /// Whether the job is done within the bound.
  Result<bool> wait(JobId job, std::int64_t bound_ns);
  /// Whether all submitted jobs are done and every block that should be on NVMe is, within the
  /// bound.
  bool drain(std::int64_t bound_ns);
  /// The next finished job, or nothing. When none is left the event descriptor is cleared.
  std::optional<JobId> poll();
  /// Readable while poll() has something.
  int event_fd() const { return finished_.get(); }

  std::vector<std::string> notices() const { return notices_; }
  BlockStore* store() { return store_.get(); }

 private:
  static constexpr int kTries = 256;

  Service(const ServiceOptions& options, std::unique_ptr<BlockStore> store,
          transfer::EventFd finished, transfer::EventFd wake);
  void run();
  void run_job(JobId id);
  bool idle() const;
  void tell();

  std::mutex mutex_;
  std::condition_variable changed_;
  Directory directory_;
  std::unique_ptr<BlockStore> store_;
  std::vector<std::string> notices_;
  transfer::EventFd finished_;
  transfer::EventFd wake_;
  bool stop_ = false;
  bool running_ = false;  ///< a job's bytes are moving
  std::thread worker_;
};

}  // namespace lehr::directory
