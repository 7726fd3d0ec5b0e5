// SPDX-License-Identifier: Apache-2.0
#include "transfer/engine.hpp"

#include <algorithm>
#include <chrono>

#include "transfer/checksum.hpp"
#include "transfer/core/engine_core.hpp"
#include "transfer/os/event_fd.hpp"

namespace lehr::transfer {
namespace {

/// Upper limit of one sleep: a lost wake-up, or a clock that only polling looks at, costs this
/// much.
constexpr std::int64_t kSliceNs = 1'000'000;
constexpr std::size_t kAdmitted = 1024;  ///< moves of one call that are taken before some start

}  // namespace

TransferEngine::TransferEngine(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(EngineParts parts) {
  auto core = std::make_unique<Core>(std::move(parts));
  LEHR_TRY(core->build());
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(core)));
}

TransferEngine::~TransferEngine() {
  const Status done = shutdown(10'000'000'000);
  if (!done && done.error().reason == Reason::kPending) {
    // A device may still write into this memory: keeping it is the lesser evil.
    [[maybe_unused]] const Core* kept = core_.release();
  }
}

std::size_t TransferEngine::tiers() const { return core_->tiers.size(); }

Store& TransferEngine::tier(TierId tier) const { return *core_->tiers[tier].store; }

std::optional<LinkId> TransferEngine::link(TierId from, TierId to) const {
  return core_->find_link(from, to);
}

Status TransferEngine::allocate(TierId tier, std::span<SlotId> out) {
  const std::lock_guard lock(core_->mutex);
  Status done = core_->allocate(tier, out, false);
  if (!done) {
    ++core_->totals.refused[static_cast<std::size_t>(done.error().reason) % kReasons];
  }
  return done;
}

Status TransferEngine::release(Place place) {
  const std::lock_guard lock(core_->mutex);
  return core_->release(place);
}

Status TransferEngine::stamp(Place place, PageId page, std::uint32_t version, PageKey key) {
  const std::lock_guard lock(core_->mutex);
  LEHR_TRY(core_->check_place(place));
  if (core_->tiers[place.tier].file != nullptr) {
    return unsupported("pages reach a file tier by moves only");
  }
  if (page == kNoPage || version == 0) return invalid("a stamp without page or version");
  return core_->stamp(place, page, version, key, 0);
}

bool TransferEngine::holds(Place place, PageId page, std::uint32_t version) const {
  const std::lock_guard lock(core_->mutex);
  return core_->check_place(place) && core_->holds(place, page, version);
}

Result<Lease> TransferEngine::lease(Place place, LeaseMode mode) {
  if (place.tier >= core_->tiers.size()) return invalid("no such tier", Reason::kOutOfRange);
  return core_->tiers[place.tier].store->slots().lease(place.slot, mode);
}

std::vector<FoundPage> TransferEngine::contents(TierId tier) const {
  const std::lock_guard lock(core_->mutex);
  std::vector<FoundPage> found;
  if (tier >= core_->tiers.size()) return found;
  if (core_->tiers[tier].file == nullptr) {
    const auto& labels = core_->tiers[tier].labels;
    for (SlotId s = 0; s < labels.size(); ++s) {
      if (labels[s].version == 0 || !core_->tiers[tier].store->slots().is_held(s)) continue;
      found.push_back({{0, labels[s].page}, labels[s].page, labels[s].version, s});
    }
    return found;
  }
  PageIndex& index = core_->tiers[tier].file->index();
  const SlotPool& slots = core_->tiers[tier].store->slots();
  const SlotId capacity = slots.usage().capacity;
  for (SlotId s = 0; s < capacity; ++s) {
    const PageRecord& r = index.at(s);
    if (r.present() && slots.is_held(s)) found.push_back({r.key, r.page, r.version, s});
  }
  return found;
}

Ticket TransferEngine::submit(std::span<const PageMove> moves, std::span<Submission> out,
                              bool atomic) {
  std::unique_lock lock(core_->mutex);
  const Ticket ticket = ++core_->last_ticket;
  if (atomic) {
    if (const Status room = core_->check_atomic(moves); !room) {
      for (std::size_t i = 0; i < moves.size(); ++i) core_->refuse(out[i], room.error());
      return ticket;
    }
  }
  bool broken = false;
  for (std::size_t i = 0; i < moves.size() && !broken; ++i) {
    // The first of many are on their way while the rest is still being taken.
    if (!atomic && i != 0 && i % kAdmitted == 0) core_->pump(lock);
    out[i] = {};
    auto job = core_->admit(moves[i], ticket, out[i].slot);
    if (job) {
      out[i].job = *job;
    } else {
      core_->refuse(out[i], job.error());
      if (!atomic) continue;
      // Nothing of the batch has started: taking it back leaves no trace but the refusal.
      for (std::size_t j = 0; j < moves.size(); ++j) {
        if (j < i) core_->withdraw(out[j].job);
        if (j != i) core_->refuse(out[j], job.error());
      }
      broken = true;
    }
  }
  core_->pump(lock);
  return ticket;
}

std::size_t TransferEngine::poll(std::span<MoveResult> out) {
  std::unique_lock lock(core_->mutex);
  core_->pump(lock);
  auto& results = core_->results;
  const std::size_t count = std::min(out.size(), results.size());
  std::copy_n(results.begin(), count, out.begin());
  results.erase(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

namespace {

/// Pumps and sleeps until `done` holds; false when the bound passed first.
template <class CoreType, class Done>
bool wait_for(CoreType& core, std::int64_t bound_ns, Done done) {
  const SteadyClock real;
  const std::int64_t end = real.now_ns() + bound_ns;
  std::unique_lock lock(core.mutex);
  for (;;) {
    core.pump(lock);
    if (done()) return true;
    const std::int64_t left = std::min(end - real.now_ns(), kSliceNs);
    if (left <= 0) return false;
    if (core.driven) {
      core.finished_cv.wait_for(lock, std::chrono::nanoseconds(left));
      continue;
    }
    const std::vector<int> fds = core.event_fds();
    lock.unlock();
    wait_readable(fds, left);
    lock.lock();
  }
}

Error still_running(std::size_t jobs) {
  return refused(Reason::kPending, std::to_string(jobs) + " moves are not finished yet");
}

}  // namespace

std::size_t TransferEngine::wait_some(std::span<MoveResult> out, std::int64_t bound_ns) {
  wait_for(*core_, bound_ns, [&] { return !core_->results.empty() || core_->unfinished == 0; });
  return poll(out);
}

Status TransferEngine::wait(Ticket ticket, std::int64_t bound_ns) {
  const auto& open = core_->open_tickets;
  if (wait_for(*core_, bound_ns, [&] { return open.find(ticket) == open.end(); })) return {};
  return still_running(1);
}

Status TransferEngine::wait_all(std::int64_t bound_ns) {
  if (wait_for(*core_, bound_ns, [&] { return core_->unfinished == 0; })) return {};
  return still_running(core_->unfinished);
}

std::size_t TransferEngine::cancel(std::span<const JobId> jobs) {
  std::unique_lock lock(core_->mutex);
  std::size_t count = 0;
  for (const JobId id : jobs) count += core_->cancel(id);
  core_->pump(lock);
  return count;
}

void TransferEngine::begin_step() {
  std::unique_lock lock(core_->mutex);
  core_->scheduler->begin_step();
  core_->pump(lock);
}

void TransferEngine::set_share(LinkId link, double share) {
  const std::lock_guard lock(core_->mutex);
  if (link >= core_->links.size()) return;
  core_->scheduler->set_share(link, share);
  core_->set_share(link, core_->scheduler->share(link));
}

void TransferEngine::step_slowdown(double slowdown) {
  const std::lock_guard lock(core_->mutex);
  core_->scheduler->measured_slowdown(slowdown);
  for (std::size_t l = 0; l < core_->links.size(); ++l) {
    if (!(core_->links[l].config.limits.allowed_slowdown > 0)) continue;
    const auto link = static_cast<LinkId>(l);
    core_->set_share(link, core_->scheduler->share(link));
  }
}

void TransferEngine::hold_background(LinkId link, std::int64_t until_ns) {
  const std::lock_guard lock(core_->mutex);
  if (link < core_->links.size()) core_->scheduler->hold_background(link, until_ns);
}

Status TransferEngine::flush() {
  // Without the lock: syncing takes long, and touches only descriptors.
  for (const auto& tier : core_->tiers) {
    if (tier.file != nullptr) LEHR_TRY(tier.file->sync());
  }
  return {};
}

Status TransferEngine::shutdown(std::int64_t bound_ns) {
  {
    const std::lock_guard lock(core_->mutex);
    core_->accepting = false;
    for (std::uint32_t i = 0; i < core_->jobs.size(); ++i) {
      if (core_->jobs[i].phase != Core::Phase::kNone) {
        core_->cancel((JobId{core_->jobs[i].generation} << 32) | i);
      }
    }
  }
  LEHR_TRY(wait_all(bound_ns));
  LEHR_TRY(flush());
  for (const auto& tier : core_->tiers) {
    const SlotUsage usage = tier.store->slots().usage();
    if (usage.leases != 0) {
      return refused(Reason::kLeased, tier.store->name() + ": " + std::to_string(usage.leases) +
                                          " leases are still held");
    }
  }
  return {};
}

EngineStats TransferEngine::stats() const {
  const std::lock_guard lock(core_->mutex);
  EngineStats stats = core_->totals;
  stats.unfinished = core_->unfinished;
  for (std::size_t i = 0; i < core_->links.size(); ++i) {
    stats.links.push_back(core_->links[i].stats);
    stats.links.back().load = core_->scheduler->load(static_cast<LinkId>(i));
  }
  return stats;
}

std::size_t TransferEngine::take_events(std::span<TransferEvent> out) {
  const std::lock_guard lock(core_->mutex);
  auto& events = core_->events;
  const std::size_t count = std::min(out.size(), events.size());
  std::copy_n(events.begin(), count, out.begin());
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

std::vector<int> TransferEngine::event_fds() const { return core_->event_fds(); }

void TransferEngine::set_driven(bool driven) {
  const std::lock_guard lock(core_->mutex);
  core_->driven = driven;
}

}  // namespace lehr::transfer
