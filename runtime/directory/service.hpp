// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/directory/block_store.hpp"
#include "runtime/directory/directory.hpp"
#include "runtime/directory/lane_job.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::directory {

struct ServiceOptions {
  DirectoryOptions directory;
  std::optional<BlockStoreOptions> store;  ///< absent: decides only, moves nothing
};

/// A directory that several threads may use, and the thread that carries its jobs out. The lock is
/// held for bookkeeping only, never while bytes move. Blocks on a device move in the order of the
/// caller's streams (lane_job.hpp); those in host memory by the thread itself. Thread-safe.
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

  /// Pools on a device need `store.lanes`, and memory that is that device's.
  Result<PoolId> register_pool(const PoolDesc& pool);
  /// Entries in memory of the pool's kind, at an address that stays; all none.
  Result<TableId> open_table(BlockTable table);
  /// Waits for nothing: the device must be done with the table.
  Status close_table(TableId table);
  struct Entry {
    std::uint32_t row = 0, column = 0;
    std::uint32_t block = kNoBlock;
  };
  /// All or none; of a table on a device in the order of `stream`, else at once.
  Status write_table(TableId table, std::span<const Entry> entries, void* stream);
  /// The rows of a table one after the other, of each the columns that its tokens take, and where
  /// each begins: FlashInfer's indices, indptr and last_page_len. On a table of block numbers.
  struct Ragged {
    std::span<const std::uint32_t> tokens;  ///< of each of the first rows
    std::uint32_t block_tokens = 0;
    std::int32_t* begins = nullptr;  ///< [rows + 1]
    std::int32_t* blocks = nullptr;  ///< [capacity]
    std::int32_t* last = nullptr;    ///< [rows]: tokens of the last block
    std::uint64_t capacity = 0;
  };
  Status write_ragged(TableId table, const Ragged& out, void* stream);
  /// Its bytes move after what `after` names; with a device only, else that is kUnsupported.
  Status submit(JobId job, const transfer::StreamOrder& after = {});
  Status cancel(JobId job);
  Status release(JobId job);
  /// What is enqueued on `stream` from now on runs after the bytes of layers 0 .. `layer` have
  /// arrived, or will not (the job's report says so): true. For blocks in host memory nothing is
  /// enqueued, and this says whether the job has ended. kOutOfRange past the last layer.
  Result<bool> hold(JobId job, std::uint32_t layer, void* stream);
  /// The event (a cudaEvent_t) after which all bytes have left their blocks, or arrived; valid
  /// until the job is released. Null where nothing moves.
  Result<void*> event(JobId job);
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
  /// A job that the worker has taken up and whose flights have not ended.
  struct Flying {
    JobId id = 0;
    std::shared_ptr<LaneJob> job;
  };

  Service(const ServiceOptions& options, std::unique_ptr<BlockStore> store,
          transfer::EventFd finished, transfer::EventFd wake);
  void run();
  void take_up(JobId id);
  void run_job(JobId id);
  void stage(LaneJob& job);
  void take_bounce_slots(LaneJob& job, const LaneJob::Leg& leg);
  bool land();
  void finish(JobId id, std::span<const BlockMove> moves, std::span<const ItemOutcome> outcomes);
  std::vector<BlockMove> moves_of(const Job& job);
  Status put(bool on_device, std::span<const transfer::SmallWrite> writes,
             std::span<const std::byte> values, std::span<const transfer::SmallCopy> copies,
             void* stream);
  Status check_order(const transfer::StreamOrder& after);
  bool idle() const;
  void tell();

  std::mutex submitting_;  ///< one submits or cancels at a time; taken before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  Directory directory_;
  std::shared_ptr<transfer::BlockLanes> lanes_;
  bool guards_order_ = true;
  std::unique_ptr<BlockStore> store_;
  std::unordered_map<JobId, std::shared_ptr<LaneJob>> lane_jobs_;  ///< until they are released
  std::vector<std::shared_ptr<LaneJob>> given_up_;  ///< cancelled; the device has them yet
  std::unordered_map<TableId, std::shared_ptr<std::byte>> table_memory_;
  std::size_t lane_jobs_open_ = 0;  ///< submitted and not done
  std::vector<std::string> notices_;
  transfer::EventFd finished_;
  transfer::EventFd wake_;
  bool stop_ = false;
  bool running_ = false;  ///< a job's bytes are moving
  // The worker's own.
  std::vector<Flying> flying_;
  std::vector<Flying> delayed_;           ///< blocks in host memory, behind work of a device
  transfer::Flight* bouncing_ = nullptr;  ///< that uses the bounce slots, of `flying_`
  std::thread worker_;
};

}  // namespace lehr::directory
