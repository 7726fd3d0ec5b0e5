// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.hpp"
#include "transfer/address.hpp"
#include "transfer/clock.hpp"
#include "transfer/faults.hpp"
#include "transfer/mover.hpp"
#include "transfer/mover_choice.hpp"
#include "transfer/page_index.hpp"
#include "transfer/scheduler.hpp"
#include "transfer/store.hpp"

namespace lehr::transfer {

inline constexpr std::size_t kReasons = 16;

/// A mover that a link may use, an index into EngineParts::movers, and what it was measured to do.
struct MeasuredMover {
  std::uint32_t mover = 0;
  MoverCurve curve;
};

/// A way from one tier to another. `mover` is an index into EngineParts::movers; without it the
/// first usable mover serves that moves between the two tiers' spaces. Where `measured` names
/// movers, each batch goes with the one whose curve promises the least time.
struct LinkConfig {
  std::string name;
  TierId from = 0;
  TierId to = 0;
  LinkLimits limits;
  std::optional<std::uint32_t> mover;
  std::vector<MeasuredMover> measured{};
};

/// What an engine is made of. Tiers are in the order of their TierId.
struct EngineParts {
  std::vector<std::unique_ptr<Store>> tiers;
  std::vector<LinkConfig> links;
  std::vector<std::unique_ptr<Mover>> movers;
  FaultPlan faults;              ///< applied to every mover; its guards too
  const Clock* clock = nullptr;  ///< null: the steady clock
  std::uint32_t max_jobs = 1U << 16;
  std::uint32_t event_ring = 4096;
  std::vector<std::string> notices;  ///< of who chose the parts; shown with the engine's own
};

/// One page to move. The contents of `from` must be `page` at `version` when the move starts.
struct PageMove {
  PageId page = kNoPage;
  std::uint32_t version = 1;  ///< at least 1
  Place from;
  Place to;  ///< slot kNoSlot: the engine allocates one, and releases it again if the move fails
  Cause cause = Cause::kOther;
  Urgency urgency = Urgency::kBackground;
  PageKey key;  ///< what a kept file finds it by after a restart; zero: {0, page}
};

/// What became of one move at submission.
struct Submission {
  JobId job = 0;  ///< 0: refused
  SlotId slot = kNoSlot;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
};

struct MoveResult {
  JobId job = 0;
  PageId page = kNoPage;
  std::uint32_t version = 0;
  Place from;
  Place to;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  Bytes bytes = 0;  ///< really moved
};

/// One finished job, for a trace viewer. Times are the clock's.
struct TransferEvent {
  std::int64_t submitted_ns = 0, started_ns = 0, ended_ns = 0;
  JobId job = 0;
  PageId page = kNoPage;
  LinkId link = 0;
  Cause cause = Cause::kOther;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  Bytes bytes = 0;
};

struct MoverShare {
  std::string mover;
  std::uint64_t jobs = 0;  ///< finished well
  Bytes bytes = 0;         ///< really moved
};

struct LinkStats {
  std::string name;
  std::string mover;  ///< or movers, separated by commas
  std::vector<MoverShare> by_mover;
  std::array<std::uint64_t, kCauses> jobs{};  ///< finished well
  std::array<Bytes, kCauses> bytes{};         ///< really moved, failed jobs included
  std::int64_t exposed_ns = 0;  ///< with something under way that a step waits for (urgent)
  std::int64_t hidden_ns = 0;   ///< with background work alone under way
  LinkLoad load;
};

struct EngineStats {
  std::vector<LinkStats> links;
  std::array<std::uint64_t, kReasons> refused{};  ///< at submission, by Reason
  std::array<std::uint64_t, kReasons> failed{};   ///< after it, by Reason
  std::uint64_t finished = 0, cancelled = 0, checksum_failures = 0;
  std::uint32_t unfinished = 0;
  std::uint64_t events_dropped = 0;
  std::vector<std::string> notices;
};

struct FoundPage {
  PageKey key;
  PageId page;
  std::uint32_t version;
  SlotId slot;
};

using Ticket = std::uint64_t;

/// Moves pages between tiers. It owns the tiers' slots: who holds which, what is in them (page,
/// version; for files key and checksum as well), and leases on both ends of each move. A move
/// starts when the last reader of its destination and the writer of its source are done; nothing
/// else waits for them. A move that fails leaves its page readable where it was.
///
/// Thread safe. Nothing blocks but the waits, flush() and shutdown(); completions come to light,
/// and queued work starts, in every submit(), poll() and wait() (or by a ControlLoop).
class TransferEngine {
 public:
  class Core;  // core/engine_core.hpp
  static Result<std::unique_ptr<TransferEngine>> create(EngineParts parts);
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;
  /// shutdown() with ten seconds. Memory that a device still writes into is not freed.
  ~TransferEngine();

  std::size_t tiers() const;
  Store& tier(TierId tier) const;
  std::optional<LinkId> link(TierId from, TierId to) const;

  /// Slots, all or none; see SlotPool::allocate for the reasons of a refusal.
  Status allocate(TierId tier, std::span<SlotId> out);
  Status release(Place place);
  /// The caller filled a slot (under a write lease, if others may look at it): this is in it now.
  Status stamp(Place place, PageId page, std::uint32_t version, PageKey key = {});
  /// Whether a slot holds this page at this version.
  bool holds(Place place, PageId page, std::uint32_t version) const;
  Result<Lease> lease(Place place, LeaseMode mode);
  /// What a tier holds: of a file also what was found after a restart.
  std::vector<FoundPage> contents(TierId tier) const;

  /// Submits moves and says of each what became of it (out.size() == moves.size()). With `atomic`,
  /// all are taken or none. Refused with kOverBudget beyond max_jobs that are unfinished or not
  /// polled. Within a call and across calls, moves of the same slot take their turns in order.
  Ticket submit(std::span<const PageMove> moves, std::span<Submission> out, bool atomic = false);
  /// Finished moves, in order of completion.
  std::size_t poll(std::span<MoveResult> out);
  /// As poll(), but waits until there is one, nothing is unfinished, or the bound passes.
  std::size_t wait_some(std::span<MoveResult> out, std::int64_t bound_ns);
  /// Waits for all moves of a submit(); refused with kPending when the bound passes.
  Status wait(Ticket ticket, std::int64_t bound_ns);
  Status wait_all(std::int64_t bound_ns);
  /// Cancels moves that have not started; they finish with kCancelled. Returns how many.
  std::size_t cancel(std::span<const JobId> jobs);

  /// A new step: byte budgets are filled again.
  void begin_step();
  /// How much slower the last step was than an undisturbed one (measured: 0.02 is 2 %). Links with
  /// an allowed slow-down follow with rate, depth and the share of SMs that their movers use.
  void step_slowdown(double slowdown);
  /// Share of a link that background work may use, and when it may start.
  void set_share(LinkId link, double share);
  void hold_background(LinkId link, std::int64_t until_ns);

  /// Makes what was written to kept files durable.
  Status flush();
  /// Cancels what has not started, waits for the rest, flushes. Refused with kPending when jobs
  /// were still running at the bound, with kLeased when somebody else still holds a lease. Nothing
  /// is accepted after.
  Status shutdown(std::int64_t bound_ns);

  EngineStats stats() const;
  /// Takes the oldest events; those that found the ring full were dropped and counted.
  std::size_t take_events(std::span<TransferEvent> out);
  /// Descriptors that become readable when poll() has something to do.
  std::vector<int> event_fds() const;

 private:
  friend class ControlLoop;
  explicit TransferEngine(std::unique_ptr<Core> core);
  void set_driven(bool driven);
  std::unique_ptr<Core> core_;
};

}  // namespace lehr::transfer
