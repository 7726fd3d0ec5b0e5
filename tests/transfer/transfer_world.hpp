// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "transfer/clock.hpp"
#include "transfer/engine.hpp"
#include "transfer/host_engine.hpp"
#include "transfer/mover.hpp"

namespace lehr::transfer::test {

inline constexpr std::int64_t kLong = 20'000'000'000;  ///< a bound that only a hang reaches

/// Contents that name their page and version in every word.
void fill(std::span<std::byte> bytes, std::uint64_t page, std::uint64_t version);
bool is_filled(std::span<const std::byte> bytes, std::uint64_t page, std::uint64_t version);

/// A directory of its own, removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::size_t entries() const;

 private:
  std::string path_;
};

/// Named points that threads reach and wait for.
class SeqPoints {
 public:
  void reach(const std::string& name);
  void await(const std::string& name);

 private:
  std::mutex mutex_;
  std::condition_variable reached_cv_;
  std::set<std::string> reached_;
};

class FakeClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_.load(); }
  void advance(std::int64_t ns) { now_.fetch_add(ns); }

 private:
  std::atomic<std::int64_t> now_{0};
};

/// Opened and closed by the test; shared with the movers that it holds back.
struct Gate {
  std::atomic<bool> open{true};
};
/// Passes jobs on only while the gate is open; until then they count as started.
std::unique_ptr<Mover> make_gated(std::unique_ptr<Mover> inner, Gate& gate);

/// Tiers: 0 `hbm` and 1 `host` in memory, 2 `nvme` in a scratch file.
struct WorldConfig {
  SlotId hbm = 8, host = 8, nvme = 32;
  Bytes page_bytes = 4096;
  bool use_uring = true;
  std::string kept_file;  ///< empty: scratch
  LinkLimits limits;
  std::optional<LinkLimits> store_limits;  ///< of host -> nvme, where it differs
  FaultPlan faults;
  const Clock* clock = nullptr;
  Gate* gate = nullptr;  ///< holds host -> hbm only
  std::uint32_t max_jobs = 1U << 16;
};

inline constexpr TierId kHost = 1, kNvme = 2;

/// A world in which the faults of a plan happen, or guards are off: "read#4=bitflip; off=leases".
WorldConfig with_plan(const std::string& plan);
/// Loads go one at a time, and none before `gate` (closed here) is opened.
WorldConfig one_load_at_a_time(Gate& gate);

/// An engine of three tiers, with short cuts that fail the running test.
class World {
 public:
  explicit World(const WorldConfig& config = {});
  ~World();

  TransferEngine& engine() { return *engine_; }
  SlotId take(TierId tier);
  std::span<std::byte> bytes(Place place);
  /// A new slot of a memory tier holding a page.
  Place make(TierId tier, PageId page, std::uint32_t version = 1);
  bool intact(Place place, PageId page, std::uint32_t version = 1);
  Submission submit(const PageMove& move);
  /// Makes page `page` at home and asks for its load.
  Submission submit_load(PageId page);
  /// Submits, waits and returns the one result.
  MoveResult run(const PageMove& move);
  MoveResult next_result();
  void validate();

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<TransferEngine> engine_;
};

PageMove move_of(PageId page, Place from, Place to, std::uint32_t version = 1);

}  // namespace lehr::transfer::test
