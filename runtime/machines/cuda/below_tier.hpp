// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"
#include "runtime/machines/cuda.hpp"
#include "runtime/machines/cuda/home_slots.hpp"
#include "transfer/engine.hpp"

namespace lehr::runtime::cuda {

struct BelowConfig {
  std::string home, name;   ///< of the tiers
  std::uint32_t slots = 0;  ///< of the tier below
  Bytes page_bytes = 0;
  std::span<std::byte> host;  ///< the home tier's places, each at a multiple of 4 KiB
  BelowOptions options;
};

/// The tier below the home tier: a file. Pages come up into places of the home tier that no launch
/// uses, while earlier launches run and the host decides; a launch waits for those that it reads
/// alone. Pages go down from places whose contents are certain, that is after the launch that wrote
/// them. Pages are verified by checksum and name as they come up. One thread.
class BelowTier {
 public:
  static Result<std::unique_ptr<BelowTier>> create(const BelowConfig& config, HomeSlots& slots);

  /// A place for what the device writes into the home slot in the launch that is listed.
  /// kRefused: every spare place is in use.
  Result<std::uint32_t> into(SlotId home, Launches listed);
  /// Brings a page up into a home slot. Where it is still on its way down, nothing is read: the
  /// place that is returned holds it, for the device to copy.
  Result<std::optional<std::uint32_t>> stage(PageId page, std::uint32_t version, SlotId from,
                                             SlotId home, Launches listed);
  /// The page of a place goes down once its contents are there.
  Status sink(PageId page, std::uint32_t version, std::uint32_t place, SlotId to);
  /// The launch that is listed reads the place.
  void need(std::uint32_t place);
  /// Hands reads over: those that are needed first.
  Status submit(bool launched = false);

  /// Everything that is needed has arrived. kRefused with kPending past the bound.
  Status wait_for_needed();
  /// Takes what has ended; starts writes whose contents are there. The first failure.
  Status pump(Launches ended);
  /// Waits until nothing is under way, however it ends. kRefused with kPending past the bound.
  Status settle(Launches ended, std::int64_t bound_ns);
  static constexpr std::int64_t kPatientNs = 60'000'000'000;  ///< outside the steps
  /// What was listed is not handed over: nobody needs it, and what was to go down stays.
  void rollback();

  /// Pages of slots, into places that were taken: from the file, or from where they still lie. 1
  /// for each that could be read.
  struct Wanted {
    SlotId from = kNoSlot;
    PageId page = kNoPage;
    std::uint32_t version = 0;
    std::uint32_t place = 0;
  };
  Result<std::vector<std::uint8_t>> fetch(std::span<const Wanted> wanted);

  Seconds waited() const { return waited_; }  ///< so far, in wait_for_needed()
  std::uint64_t read() const { return read_; }
  std::uint64_t written() const { return written_; }
  std::uint64_t copied() const { return copied_; }  ///< staged from where they still lay
  /// With a read, or a write, under way.
  Seconds reading() const { return busy(1); }
  Seconds writing() const { return busy(0); }
  std::vector<std::string> notes() const;

 private:
  struct Write {
    PageId page = kNoPage;
    std::uint32_t version = 0;
    std::uint32_t place = 0;
    Launches after = 0;
    transfer::JobId job = 0;  ///< 0: not handed over yet
    bool listed = true;       ///< by the launch that is listed now
    bool failed = false;
  };
  enum class Arrival : std::uint8_t { kThere, kComing, kNeeded };

  BelowTier(HomeSlots& slots, const BelowConfig& config,
            std::unique_ptr<transfer::TransferEngine> engine);
  Status start_writes(Launches ended);
  void drop_write(SlotId to);
  void take(std::span<const transfer::MoveResult> results);
  Seconds busy(LinkId link) const;

  HomeSlots& slots_;
  BelowConfig config_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  std::vector<Arrival> arrivals_;  ///< by place
  std::uint32_t needed_ = 0;       ///< places that have yet to arrive
  std::vector<transfer::PageMove> reads_;
  std::unordered_map<SlotId, Write> writes_;  ///< by slot below, until they have ended well
  std::deque<SlotId> waiting_;                ///< of them, those that were not handed over
  std::unordered_set<SlotId> under_way_;      ///< slots that pages that are gone still go to
  Status failure_;
  Seconds waited_ = 0;
  std::uint64_t read_ = 0, written_ = 0, copied_ = 0;
};

}  // namespace lehr::runtime::cuda
