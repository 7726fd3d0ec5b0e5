// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "transfer/engine.hpp"
#include "transfer/page_file.hpp"

namespace lehr::transfer {

/// The engine's state. Every member function expects `mutex` to be held, unless it says otherwise;
/// those that are given the lock let go of it while they read contents.
class TransferEngine::Core {
 public:
  enum class Phase : std::uint8_t { kNone, kWaiting, kQueued, kStarting, kStarted };
  using Lock = std::unique_lock<std::mutex>;

  struct Active {
    PageMove move;
    Lease source, destination;
    Ticket ticket = 0;
    std::int64_t submitted_ns = 0, started_ns = 0;
    std::uint64_t contents_checksum = 0;  ///< of what is written to, or expected from, a file
    std::uint32_t generation = 0;
    Phase phase = Phase::kNone;
    LinkId link = 0;
    std::uint32_t way = 0;  ///< of the link's movers, once started
    bool own_slot = false;
    bool prepared = false;
    bool summed = false;  ///< contents_checksum is known
  };
  struct Label {
    PageId page = kNoPage;
    std::uint32_t version = 0;
  };
  struct Tier {
    std::unique_ptr<Store> store;
    PageFile* file = nullptr;   ///< null for memory
    std::vector<Label> labels;  ///< memory only; a file's are in its index
    std::vector<bool>
        doomed;  ///< file slots released under a lease: the record goes with the last one
  };
  struct Link {
    LinkConfig config;
    std::vector<std::uint32_t> movers;  ///< with `curves` one for each, else a single one
    std::vector<MoverCurve> curves;
    Bytes job_bytes = 0;
    Bytes held_bytes = 0;                      ///< of jobs that wait for their leases' turn
    std::array<std::uint32_t, 2> under_way{};  ///< jobs that a mover has, by Urgency
    std::int64_t counted_ns = 0;               ///< until when the link's time is in `stats`
    LinkStats stats;
  };

  explicit Core(EngineParts parts);
  Status build();

  // Slots and labels.
  Status check_place(Place place) const;
  Status allocate(TierId tier, std::span<SlotId> out, bool behind_readers);
  Status release(Place place);
  Status stamp(Place place, PageId page, std::uint32_t version, PageKey key, std::uint64_t sum);
  Status forget(Place place);
  bool holds(Place place, PageId page, std::uint32_t version) const;

  // Jobs.
  std::optional<LinkId> find_link(TierId from, TierId to) const;
  Status check_atomic(std::span<const PageMove> moves) const;
  Result<JobId> admit(const PageMove& move, Ticket ticket, SlotId& slot);
  bool cancel(JobId id);
  /// Takes back a job that was admitted in this call, without a result.
  void withdraw(JobId id);
  void pump(Lock& lock);
  void set_share(LinkId link, double share) const;
  void refuse(Submission& out, const Error& error);
  std::vector<int> event_fds() const;

  mutable std::mutex mutex;
  std::condition_variable finished_cv;
  bool accepting = true;
  bool driven = false;  ///< a ControlLoop pumps: waiters need not
  std::vector<Tier> tiers;
  std::vector<Link> links;
  SteadyClock steady;
  const Clock* clock;
  FaultInjector injector;
  std::vector<std::unique_ptr<Mover>> movers;
  std::unique_ptr<Scheduler> scheduler;
  std::deque<Active> jobs;  ///< stable addresses; free ones in free_jobs
  std::vector<std::uint32_t> free_jobs;
  /// Jobs whose leases' turn has not come, by both of their slots, in order.
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> waiting;
  std::unordered_map<std::uint64_t, std::uint32_t>
      own_slots;  ///< allocated for a job: who gives them back
  std::uint32_t unfinished = 0;
  std::uint32_t max_jobs;
  Ticket last_ticket = 0;
  std::unordered_map<Ticket, std::uint32_t> open_tickets;
  std::deque<MoveResult> results;
  std::deque<TransferEvent> events;
  std::uint32_t event_ring;
  EngineStats totals;

 private:
  struct Starting {
    std::vector<Scheduler::Item> items;
    std::vector<Job> batch;
  };
  std::vector<Completion> spare_arrived_;  ///< room of the last pump, for the next
  Starting spare_starting_;

  Active* find(JobId id);
  JobId id_of(std::uint32_t index) const;
  void make_ready(std::uint32_t index);
  void start_waiting(std::uint32_t index);
  void stop_waiting(std::uint32_t index);
  void collect_completions(std::vector<Completion>& arrived);
  bool advance_waiting();
  bool start_all(Lock& lock);
  bool start_queued(LinkId link, Lock& lock);
  /// Takes jobs of a link that may start now, as many as one submission to a mover should have.
  void pick(LinkId link, std::vector<Scheduler::Item>& items, bool& any);
  void sum_sources(std::span<const Scheduler::Item> items, Lock& lock);
  std::size_t choose(const Link& link, std::span<const Job> batch) const;
  bool verified_here(const Active& job) const;
  Status prepare(Active& job);
  void settle_all(std::span<const Completion> arrived, Lock& lock);
  Status settle(Active& job, const Completion& completion, std::optional<std::uint64_t> sum);
  void finish(std::uint32_t index, Code code, Reason reason, Bytes bytes);
  /// The link's time until now, before what is under way changes.
  static void count_time(Link& link, std::int64_t now_ns);
  /// Checks that the link's tiers fit each other and finds the movers that go between them.
  Status connect(Link& link) const;
  Status find_movers(Link& link) const;
};

}  // namespace lehr::transfer
