// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/directory/directory.hpp"
#include "runtime/directory/helpers.hpp"
#include "transfer/block_lanes.hpp"
#include "transfer/host_engine.hpp"

namespace lehr::directory {

struct BlockStoreOptions {
  Bytes block_bytes = 0;
  std::array<std::uint32_t, kTiers> slots{};
  std::string nvme_directory;  ///< of the scratch file, which vanishes with the process
  transfer::FaultPlan faults;
  std::vector<transfer::MeasuredWay> movers;  ///< what a profile says, by kHostTier and kNvmeTier
  /// Of a device that pools may live on: host slots are memory that it reaches. Null: none.
  std::shared_ptr<transfer::BlockLanes> lanes;
  std::uint32_t threads = 0;  ///< that sum, gather and scatter blocks (Helpers)
};

/// Host slots beyond the catalog's, through which a load passes that keeps no copy in host.
inline constexpr std::uint32_t kBounceSlots = 16;

/// One item of a job with everything that moving it needs: pools may come and go meanwhile.
struct BlockMove {
  std::size_t index = 0;  ///< in the job
  std::byte* block = nullptr;
  std::shared_ptr<const std::vector<Run>> runs;
  std::shared_ptr<const BlockParts> parts;  ///< of a block on a device
  Bytes bytes = 0;
  ObjectId object = kNone;
  TierId tier = 0;
  SlotId slot = kNoSlot;
  SlotId host_copy = kNoSlot;
  std::uint64_t checksum = 0;  ///< of a load: what was stored
  /// Of a load: what says where the block is once it is there; null: nothing.
  std::byte* entry = nullptr;
  std::uint32_t entry_bytes = 0;
  std::byte absent{};
  std::uint64_t entry_value = 0;
};

/// Real bytes of the placement level on the host machine: gathers pool blocks into host slots and
/// back, and moves slots between host and NVMe through the transfer engine. Every load is verified
/// against the checksum of its store. Blocks on a device are moved by their job's flights
/// (lane_job.hpp), from and to the same host slots. Used by one thread, which helpers of its own
/// join where there is much to do; host_slot() by any.
class BlockStore {
 public:
  static Result<std::unique_ptr<BlockStore>> create(const BlockStoreOptions& options);
  ~BlockStore();

  void store(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);
  void load(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);

  /// The bytes of stores have arrived in their slots, those with an outcome of kOk.
  void seal(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);
  /// Brings the bytes of loads to staged_slot() and verifies them. A host_copy past the catalog's
  /// slots is one of kBounceSlots and keeps nothing. `ready(n)` meanwhile, and in the end: the
  /// first n moves have their outcome.
  void stage(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes,
             const std::function<void(std::size_t)>& ready);
  static SlotId staged_slot(const BlockMove& move) {
    return move.tier == kHostTier ? move.slot : move.host_copy;
  }
  SlotId bounce_slot(std::size_t index) const {
    return options_.slots[kHostTier] + static_cast<SlotId>(index);
  }

  /// Starts writing a copy down; its end comes from poll_writes().
  void start_write(const WriteDown& write);
  struct Written {
    WriteDown write;
    bool ok;
  };
  std::vector<Written> poll_writes();
  std::size_t writes_in_flight() const { return writes_.size(); }

  std::vector<int> event_fds() const { return engine_->event_fds(); }
  std::vector<std::string> notices() const { return engine_->stats().notices; }
  /// The bytes of a host slot, for tests that break them.
  std::span<std::byte> host_slot(SlotId slot) const;

 private:
  BlockStore(const BlockStoreOptions& options, std::unique_ptr<transfer::TransferEngine> engine);
  bool checks() const { return options_.faults.guards(transfer::Guard::kChecksum); }
  std::span<const std::byte> staged(const BlockMove& move) const {
    return host_slot(staged_slot(move)).first(move.bytes);
  }
  void fetch(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);
  void sum(std::span<const BlockMove> moves, std::span<const ItemOutcome> outcomes,
           const std::function<void(std::size_t, std::uint64_t)>& known,
           const std::function<void(std::size_t)>& ready = {});
  void verify(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes,
              const std::function<void(std::size_t)>& ready);
  void stamp(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);
  void scatter(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes);
  void keep_copies(std::span<const BlockMove> moves, std::span<ItemOutcome> outcomes) const;
  void collect();

  BlockStoreOptions options_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  std::vector<std::uint32_t> versions_;  ///< by object: which store its bytes are of
  std::unordered_map<transfer::JobId, WriteDown> writes_;
  std::vector<Written> refused_writes_;
  std::vector<Written> finished_writes_;
  std::unordered_map<transfer::JobId, Error> fetched_;
  Helpers helpers_;
};

}  // namespace lehr::directory
