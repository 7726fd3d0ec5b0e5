// SPDX-License-Identifier: Apache-2.0
#include "transfer/core/engine_core.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/check.hpp"
#include "transfer/checksum.hpp"

namespace lehr::transfer {
namespace {

constexpr std::size_t kBatch = 64;         ///< completions taken, and jobs whose contents are read
constexpr std::size_t kLargeBatch = 1024;  ///< jobs given to a mover at once

std::size_t space_index(const Store& store) { return static_cast<std::size_t>(store.space()); }
std::size_t reason_index(Reason reason) {
  return std::min(static_cast<std::size_t>(reason), kReasons - 1);
}

std::uint64_t slot_name(Place place) { return (std::uint64_t{place.tier} << 32) | place.slot; }

PageKey key_of(const PageMove& move) {
  return move.key == PageKey{} ? PageKey{0, move.page} : move.key;
}

/// A slot's contents where the host can read them.
std::optional<std::span<std::byte>> host_bytes(const Store& store, SlotId slot) {
  if (store.space() != Space::kHostMemory) return std::nullopt;
  return std::span(store.address(slot).pointer, store.page_bytes());
}

}  // namespace

using Core = TransferEngine::Core;

Core::Core(EngineParts parts)
    : clock(parts.clock != nullptr ? parts.clock : &steady),
      injector(std::move(parts.faults)),
      movers(std::move(parts.movers)),
      max_jobs(parts.max_jobs),
      event_ring(parts.event_ring) {
  totals.notices = std::move(parts.notices);
  for (auto& store : parts.tiers) {
    Tier tier;
    tier.store = std::move(store);
    tiers.push_back(std::move(tier));
  }
  for (auto& link : parts.links) {
    Link l;
    l.config = std::move(link);
    links.push_back(std::move(l));
  }
}

Status Core::build() {
  if (tiers.empty() || tiers.size() > kMaxTiers) {
    return invalid("an engine needs 1 to " + std::to_string(kMaxTiers) + " tiers");
  }
  for (Tier& tier : tiers) {
    const SlotId capacity = tier.store->slots().usage().capacity;
    tier.file = dynamic_cast<PageFile*>(tier.store.get());
    if (tier.file == nullptr) tier.labels.resize(capacity);
    tier.doomed.resize(tier.file != nullptr ? capacity : 0);
    for (const std::string& notice : tier.store->notices()) totals.notices.push_back(notice);
  }
  std::vector<LinkLimits> limits;
  for (Link& link : links) {
    LEHR_TRY(connect(link));
    limits.push_back(link.config.limits);
  }
  for (auto& mover : movers) {
    const std::string why = mover->probe().why;
    if (!why.empty()) totals.notices.push_back(std::string(mover->traits().name) + ": " + why);
    if (!injector.plan().faults.empty()) mover = make_faulty(std::move(mover), injector, *clock);
  }
  scheduler = std::make_unique<Scheduler>(limits);
  return {};
}

Status Core::connect(Link& link) const {
  const LinkConfig& c = link.config;
  if (c.from >= tiers.size() || c.to >= tiers.size() || c.from == c.to) {
    return invalid("link " + c.name + ": tiers out of range", Reason::kOutOfRange);
  }
  const Store& from = *tiers[c.from].store;
  const Store& to = *tiers[c.to].store;
  if (from.page_bytes() != to.page_bytes()) {
    return invalid("link " + c.name + ": its tiers have pages of " +
                   std::to_string(from.page_bytes()) + " and " + std::to_string(to.page_bytes()) +
                   " bytes");
  }
  // Files are read and written in whole blocks, so memory that meets them has room for those.
  link.job_bytes = from.page_bytes();
  if (from.space() == Space::kFile) link.job_bytes = from.stride();
  if (to.space() == Space::kFile) link.job_bytes = to.stride();
  if (from.stride() < link.job_bytes || to.stride() < link.job_bytes) {
    return invalid("link " + c.name + ": a memory tier beside a file needs slots of 4 KiB blocks");
  }
  LEHR_TRY(find_movers(link));
  link.stats.name = c.name;
  for (const std::uint32_t mover : link.movers) {
    const std::string name = movers[mover]->traits().name;
    link.stats.by_mover.push_back({name, 0, 0});
    if (link.stats.mover.find(name) == std::string::npos)
      link.stats.mover += (link.stats.mover.empty() ? "" : ", ") + name;
  }
  return {};
}

Status Core::find_movers(Link& link) const {
  const LinkConfig& c = link.config;
  const Store& from = *tiers[c.from].store;
  const Store& to = *tiers[c.to].store;
  // Contents of a file that the host never sees must be looked at on their way.
  const bool file = from.space() == Space::kFile || to.space() == Space::kFile;
  const bool seen = from.space() == Space::kHostMemory || to.space() == Space::kHostMemory;
  const auto goes = [&](std::size_t index) {
    if (index >= movers.size()) return false;
    const MoverTraits& traits = movers[index]->traits();
    return traits.moves[space_index(from)][space_index(to)] && movers[index]->probe().usable &&
           (!file || seen || traits.checks);
  };
  const auto none = [&] {
    return unsupported("link " + c.name + ": no mover goes from " + from.name() + " to " +
                       to.name());
  };
  for (const MeasuredMover& measured : c.measured) {
    if (!goes(measured.mover)) return none();
    link.movers.push_back(measured.mover);
    link.curves.push_back(measured.curve);
  }
  if (!link.movers.empty()) return {};
  std::uint32_t chosen = c.mover.value_or(0);
  while (!c.mover && chosen < movers.size() && !goes(chosen)) ++chosen;
  if (!goes(chosen)) return none();
  link.movers.push_back(chosen);
  return {};
}

// ---- slots and labels

Status Core::check_place(Place place) const {
  if (place.tier >= tiers.size()) {
    return invalid("no tier " + std::to_string(place.tier), Reason::kOutOfRange);
  }
  if (!tiers[place.tier].store->slots().is_held(place.slot)) {
    return invalid(tiers[place.tier].store->name() + ": slot " + std::to_string(place.slot) +
                       " is not allocated",
                   Reason::kOutOfRange);
  }
  return {};
}

Status Core::allocate(TierId tier, std::span<SlotId> out, bool behind_readers) {
  if (tier >= tiers.size()) return invalid("no tier " + std::to_string(tier), Reason::kOutOfRange);
  SlotPool& pool = tiers[tier].store->slots();
  LEHR_TRY(behind_readers ? pool.allocate_behind_readers(out) : pool.allocate(out));
  for (const SlotId slot : out) {
    // Whoever still reads a retiring slot needs to know what is in it.
    if (pool.leases_on(slot) == 0) LEHR_TRY(forget({tier, slot}));
  }
  return {};
}

Status Core::release(Place place) {
  LEHR_TRY(check_place(place));
  Tier& tier = tiers[place.tier];
  SlotPool& pool = tier.store->slots();
  // A caller that drops the destination of a running move has it given back once, not twice.
  if (const auto own = own_slots.find(slot_name(place)); own != own_slots.end()) {
    jobs[own->second].own_slot = false;
    own_slots.erase(own);
  }
  if (tier.file != nullptr) {
    // A dropped page must not be found after a restart.
    if (pool.leases_on(place.slot) == 0) {
      LEHR_TRY(forget(place));
    } else {
      tier.doomed[place.slot] = true;
    }
  }
  return pool.release(place.slot);
}

Status Core::stamp(Place place, PageId page, std::uint32_t version, PageKey key,
                   std::uint64_t sum) {
  Tier& tier = tiers[place.tier];
  if (tier.file == nullptr) {
    tier.labels[place.slot] = {page, version};
    return {};
  }
  tier.doomed[place.slot] = false;
  return tier.file->index().put(place.slot, {key, sum, page, version});
}

Status Core::forget(Place place) {
  Tier& tier = tiers[place.tier];
  if (tier.file == nullptr) {
    tier.labels[place.slot] = {};
    return {};
  }
  tier.doomed[place.slot] = false;
  return tier.file->index().erase(place.slot);
}

bool Core::holds(Place place, PageId page, std::uint32_t version) const {
  const Tier& tier = tiers[place.tier];
  if (tier.file == nullptr) {
    const Label& label = tier.labels[place.slot];
    return label.version != 0 && label.page == page && label.version == version;
  }
  const PageRecord& record = tier.file->index().at(place.slot);
  return record.present() && record.page == page && record.version == version;
}

// ---- submission

std::optional<LinkId> Core::find_link(TierId from, TierId to) const {
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i].config.from == from && links[i].config.to == to) return static_cast<LinkId>(i);
  }
  return std::nullopt;
}

JobId Core::id_of(std::uint32_t index) const {
  return (JobId{jobs[index].generation} << 32) | index;
}

Core::Active* Core::find(JobId id) {
  const auto index = static_cast<std::uint32_t>(id);
  if (index >= jobs.size() || jobs[index].phase == Phase::kNone ||
      jobs[index].generation != static_cast<std::uint32_t>(id >> 32)) {
    return nullptr;
  }
  return &jobs[index];
}

/// Whether all moves of a batch can be taken: room for their slots and on their links.
Status Core::check_atomic(std::span<const PageMove> moves) const {
  std::array<std::uint32_t, kMaxTiers> slots{};
  std::vector<Bytes> bytes(links.size(), 0);
  if (unfinished + results.size() + moves.size() > max_jobs)
    return refused(Reason::kOverBudget, "too many jobs");
  for (const PageMove& move : moves) {
    if (move.to.tier >= tiers.size()) return invalid("no such tier", Reason::kOutOfRange);
    if (move.to.slot == kNoSlot) ++slots[move.to.tier];
    const auto link = find_link(move.from.tier, move.to.tier);
    if (!link) return unsupported("no link between these tiers");
    bytes[*link] += links[*link].job_bytes;
    LEHR_TRY(scheduler->admit(*link, bytes[*link], move.urgency, links[*link].held_bytes));
  }
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    const SlotUsage usage = tiers[t].store->slots().usage();
    if (slots[t] > usage.free + usage.retiring) {
      const bool leased = usage.leased == usage.held + usage.retiring && usage.leased != 0;
      return refused(leased ? Reason::kNoEvictable : Reason::kOverBudget,
                     tiers[t].store->name() + ": not enough slots for the whole batch");
    }
  }
  return {};
}

Result<JobId> Core::admit(const PageMove& move, Ticket ticket, SlotId& slot) {
  if (!accepting) return Error{Code::kCancelled, Reason::kNone, "the engine is shut down"};
  if (move.page == kNoPage || move.version == 0) return invalid("a move without page or version");
  if (move.to.tier >= tiers.size()) return invalid("no such tier", Reason::kOutOfRange);
  LEHR_TRY(check_place(move.from));
  const std::optional<LinkId> link = find_link(move.from.tier, move.to.tier);
  if (!link) return unsupported("no link between these tiers");
  if (unfinished + results.size() >= max_jobs) return refused(Reason::kOverBudget, "too many jobs");
  const Link& way = links[*link];
  LEHR_TRY(scheduler->admit(*link, way.job_bytes, move.urgency, way.held_bytes));

  slot = move.to.slot;
  const bool own_slot = slot == kNoSlot;
  if (own_slot) {
    LEHR_TRY(allocate(move.to.tier, {&slot, 1}, true));
  } else {
    LEHR_TRY(check_place(move.to));
  }
  SlotPool& target = tiers[move.to.tier].store->slots();
  auto source = tiers[move.from.tier].store->slots().lease(move.from.slot, LeaseMode::kRead);
  if (!source) {
    if (own_slot) LEHR_TRY(target.release(slot));
    return source.error();
  }
  auto destination = target.lease(slot, LeaseMode::kWrite);
  if (!destination) {
    if (own_slot) LEHR_TRY(target.release(slot));
    return destination.error();
  }

  std::uint32_t index = 0;
  if (free_jobs.empty()) {
    index = static_cast<std::uint32_t>(jobs.size());
    jobs.emplace_back();
  } else {
    index = free_jobs.back();
    free_jobs.pop_back();
  }
  Active& job = jobs[index];
  job.move = move;
  job.move.to.slot = slot;
  job.source = *std::move(source);
  job.destination = *std::move(destination);
  job.ticket = ticket;
  job.submitted_ns = clock->now_ns();
  job.link = *link;
  job.own_slot = own_slot;
  if (own_slot) own_slots.emplace(slot_name(job.move.to), index);
  job.prepared = job.summed = false;
  ++job.generation;
  ++unfinished;
  ++open_tickets[ticket];
  if (job.source.ready() && job.destination.ready()) {
    make_ready(index);
  } else {
    start_waiting(index);
  }
  return id_of(index);
}

void Core::refuse(Submission& out, const Error& error) {
  out = {0, kNoSlot, error.code, error.reason};
  ++totals.refused[reason_index(error.reason)];
}

bool Core::cancel(JobId id) {
  Active* job = find(id);
  if (job == nullptr) return false;
  const auto index = static_cast<std::uint32_t>(id);
  if (job->phase == Phase::kStarted) {
    // The mover answers with a completion.
    return movers[links[job->link].movers[job->way]]->cancel({&id, 1}) != 0;
  }
  if (job->phase == Phase::kStarting) return false;
  if (job->phase == Phase::kWaiting) {
    stop_waiting(index);
  } else if (!scheduler->remove(job->link, index)) {
    return false;
  }
  finish(index, Code::kCancelled, Reason::kNone, 0);
  return true;
}

void Core::withdraw(JobId id) {
  const bool known = cancel(id);
  LEHR_CHECK(1, known);
  results.pop_back();
  --totals.cancelled;
  if (!events.empty() && events.back().job == id) {
    events.pop_back();
  } else {
    --totals.events_dropped;
  }
}

// ---- progress

void Core::make_ready(std::uint32_t index) {
  Active& job = jobs[index];
  job.phase = Phase::kQueued;
  scheduler->enqueue(job.link, {index, links[job.link].job_bytes, job.move.urgency});
}

void Core::start_waiting(std::uint32_t index) {
  Active& job = jobs[index];
  job.phase = Phase::kWaiting;
  links[job.link].held_bytes += links[job.link].job_bytes;
  for (const Place& place : {job.move.from, job.move.to})
    waiting[slot_name(place)].push_back(index);
}

void Core::stop_waiting(std::uint32_t index) {
  Active& job = jobs[index];
  links[job.link].held_bytes -= links[job.link].job_bytes;
  for (const Place& place : {job.move.from, job.move.to}) {
    const auto found = waiting.find(slot_name(place));
    std::erase(found->second, index);
    if (found->second.empty()) waiting.erase(found);
  }
}

void Core::pump(Lock& lock) {
  bool moved = true;
  // Other threads may pump while this one reads contents: each has room of its own, used again.
  std::vector<Completion> arrived = std::exchange(spare_arrived_, {});
  while (moved) {
    arrived.clear();
    collect_completions(arrived);
    // What waits takes the freed depth first: devices stay busy while contents are verified.
    moved = start_all(lock);
    settle_all(arrived, lock);
    moved |= !arrived.empty();
    moved |= advance_waiting();
    moved |= start_all(lock);
  }
  spare_arrived_ = std::move(arrived);
}

void Core::collect_completions(std::vector<Completion>& arrived) {
  std::array<Completion, kBatch> batch;
  for (const auto& mover : movers) {
    std::size_t count = 0;
    do {
      count = mover->poll(batch);
      for (const Completion& c : std::span(batch).first(count)) {
        const Active* job = find(c.id);
        LEHR_CHECK(1, job != nullptr && job->phase == Phase::kStarted);
        scheduler->finished(job->link, links[job->link].job_bytes);
        arrived.push_back(c);
      }
    } while (count == batch.size());
  }
}

bool Core::start_all(Lock& lock) {
  bool any = false;
  for (std::size_t l = 0; l < links.size(); ++l) any |= start_queued(static_cast<LinkId>(l), lock);
  return any;
}

/// Only those that wait for a slot on which somebody's turn came are looked at.
bool Core::advance_waiting() {
  bool any = false;
  std::vector<SlotId> turned;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    SlotPool& slots = tiers[t].store->slots();
    if (!slots.take_event()) continue;
    turned.clear();
    slots.take_turned(turned);
    for (const SlotId slot : turned) {
      const auto found = waiting.find(slot_name({static_cast<TierId>(t), slot}));
      if (found == waiting.end()) continue;
      const std::vector<std::uint32_t> candidates = found->second;
      for (const std::uint32_t index : candidates) {
        if (!jobs[index].source.ready() || !jobs[index].destination.ready()) continue;
        stop_waiting(index);
        make_ready(index);
        any = true;
      }
    }
  }
  return any;
}

void Core::pick(LinkId link, std::vector<Scheduler::Item>& items, bool& any) {
  const LinkConfig& c = links[link].config;
  const bool read_first = tiers[c.to].file != nullptr && tiers[c.from].file == nullptr;
  const std::size_t most = read_first ? kBatch : kLargeBatch;
  items.clear();
  while (items.size() < most) {
    const auto item = scheduler->next(link, clock->now_ns());
    if (!item) break;
    const auto index = static_cast<std::uint32_t>(item->id);
    if (const Status ready = prepare(jobs[index]); !ready) {
      scheduler->finished(link, item->bytes);
      finish(index, ready.error().code, ready.error().reason, 0);
      any = true;
      continue;
    }
    jobs[index].phase = Phase::kStarting;
    items.push_back(*item);
  }
}

/// Checksums of what goes to a file, where the host sees it. Its lease keeps it as it is.
void Core::sum_sources(std::span<const Scheduler::Item> items, Lock& lock) {
  std::vector<std::pair<Active*, std::span<std::byte>>> unknown;
  for (const Scheduler::Item& item : items) {
    Active& job = jobs[item.id];
    if (job.summed || tiers[job.move.to.tier].file == nullptr) continue;
    if (const auto bytes = host_bytes(*tiers[job.move.from.tier].store, job.move.from.slot))
      unknown.emplace_back(&job, *bytes);
  }
  if (unknown.empty()) return;
  lock.unlock();
  for (const auto& [job, bytes] : unknown) job->contents_checksum = checksum(bytes);
  lock.lock();
  for (const auto& [job, bytes] : unknown) job->summed = true;
}

std::size_t Core::choose(const Link& link, std::span<const Job> batch) const {
  if (link.movers.size() < 2) return 0;
  double runs = 1;
  for (std::size_t i = 1; i < batch.size(); ++i) {
    const auto follows = [](const Address& before, Bytes bytes, const Address& next) {
      return before.pointer + bytes == next.pointer && before.offset == next.offset;
    };
    if (!follows(batch[i - 1].source, batch[i - 1].bytes, batch[i].source) ||
        !follows(batch[i - 1].destination, batch[i - 1].bytes, batch[i].destination))
      ++runs;
  }
  const auto pages = static_cast<double>(batch.size());
  const std::size_t best =
      fastest(link.curves, {static_cast<double>(link.job_bytes), pages, pages / runs});
  return best < link.movers.size() ? best : 0;
}

bool Core::start_queued(LinkId link, Lock& lock) {
  bool any = false;
  Starting room = std::exchange(spare_starting_, {});
  auto& [items, batch] = room;
  for (;;) {
    pick(link, items, any);
    if (items.empty()) break;
    sum_sources(items, lock);
    const bool check = injector.plan().guards(Guard::kChecksum);
    batch.clear();
    for (const Scheduler::Item& item : items) {
      const auto index = static_cast<std::uint32_t>(item.id);
      const Active& active = jobs[index];
      const Store& from = *tiers[active.move.from.tier].store;
      batch.push_back({id_of(index), from.address(active.move.from.slot),
                       tiers[active.move.to.tier].store->address(active.move.to.slot), item.bytes,
                       active.move.cause, active.move.urgency, 0,
                       from.space() != Space::kFile || check ? from.page_bytes() : 0,
                       active.contents_checksum});
    }
    const std::size_t way = choose(links[link], batch);
    const std::size_t taken = movers[links[link].movers[way]]->submit(batch);
    for (std::size_t i = items.size(); i-- > taken;) {
      jobs[items[i].id].phase = Phase::kQueued;
      scheduler->undo(link, items[i]);
    }
    count_time(links[link], clock->now_ns());
    for (std::size_t i = 0; i < taken; ++i) {
      jobs[items[i].id].phase = Phase::kStarted;
      jobs[items[i].id].way = static_cast<std::uint32_t>(way);
      ++links[link].under_way[static_cast<std::size_t>(items[i].urgency)];
    }
    any |= taken != 0;
    if (taken < items.size()) break;
  }
  spare_starting_ = std::move(room);
  return any;
}

/// The last look before bytes move: is the source what the move says, and what will the file hold?
Status Core::prepare(Active& job) {
  if (job.prepared) return {};
  const PageMove& move = job.move;
  const Tier& from = tiers[move.from.tier];
  const bool check_generation = injector.plan().guards(Guard::kGeneration);
  if (check_generation && !holds(move.from, move.page, move.version)) {
    return Error{Code::kStale, Reason::kGeneration, "the source no longer holds that page"};
  }
  if (from.file != nullptr) {
    const PageRecord& record = from.file->index().at(move.from.slot);
    if (check_generation && !(record.key == key_of(move))) {
      return Error{Code::kStale, Reason::kGeneration, "the source holds a page of another name"};
    }
    job.contents_checksum = record.contents_checksum;
  }
  // From now on the destination holds neither the old page nor yet the new one.
  LEHR_TRY(forget(move.to));
  job.prepared = true;
  job.started_ns = clock->now_ns();
  return {};
}

/// Contents that came from a file to where the host sees them.
bool Core::verified_here(const Active& job) const {
  return tiers[job.move.from.tier].file != nullptr && injector.plan().guards(Guard::kChecksum) &&
         tiers[job.move.to.tier].store->space() == Space::kHostMemory;
}

void Core::settle_all(std::span<const Completion> arrived, Lock& lock) {
  struct Read {
    std::size_t at;
    std::span<std::byte> bytes;
    std::uint64_t sum = 0;
  };
  std::vector<Read> reads;
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    const Active& job = *find(arrived[i].id);
    if (arrived[i].code == Code::kOk && verified_here(job))
      reads.push_back({i, *host_bytes(*tiers[job.move.to.tier].store, job.move.to.slot)});
  }
  if (!reads.empty()) {  // its lease keeps the destination as it is
    lock.unlock();
    for (Read& read : reads) read.sum = checksum(read.bytes);
    lock.lock();
  }
  auto read = reads.begin();
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    std::optional<std::uint64_t> sum;
    if (read != reads.end() && read->at == i) sum = (read++)->sum;
    const Status settled = settle(*find(arrived[i].id), arrived[i], sum);
    const auto index = static_cast<std::uint32_t>(arrived[i].id);
    finish(index, settled ? Code::kOk : settled.error().code,
           settled ? Reason::kNone : settled.error().reason, arrived[i].bytes);
  }
}

/// What a completion means for the two ends: the destination holds the page, or the source is no
/// good. `sum`: of what arrived, where the host sees it.
Status Core::settle(Active& job, const Completion& completion, std::optional<std::uint64_t> sum) {
  const PageMove& move = job.move;
  Tier& from = tiers[move.from.tier];
  const bool wrong = (sum && *sum != job.contents_checksum) ||
                     (completion.code != Code::kOk && completion.reason == Reason::kChecksum);
  if (wrong) {
    ++totals.checksum_failures;
    LEHR_TRY(forget(move.from));
    return corrupt({}, Reason::kChecksum);
  }
  if (completion.code != Code::kOk) {
    // A file that ends before its page will not grow again: a miss from now on, never a retry loop.
    if (from.file != nullptr && completion.reason == Reason::kTruncated)
      LEHR_TRY(forget(move.from));
    return Error{completion.code, completion.reason, {}};
  }
  // A mover that saw what the host does not says what it wrote.
  if (tiers[move.to.tier].file != nullptr && from.store->space() != Space::kHostMemory &&
      from.file == nullptr)
    job.contents_checksum = completion.checksum;
  // Dropped while the page was on its way: nothing to be found there.
  if (!tiers[move.to.tier].store->slots().is_held(move.to.slot)) return {};
  return stamp(move.to, move.page, move.version, key_of(move), job.contents_checksum);
}

void Core::count_time(Link& link, std::int64_t now_ns) {
  const std::int64_t passed = now_ns - std::exchange(link.counted_ns, now_ns);
  if (link.under_way[static_cast<std::size_t>(Urgency::kUrgent)] != 0) {
    link.stats.exposed_ns += passed;
  } else if (link.under_way[static_cast<std::size_t>(Urgency::kBackground)] != 0) {
    link.stats.hidden_ns += passed;
  }
}

void Core::finish(std::uint32_t index, Code code, Reason reason, Bytes bytes) {
  Active& job = jobs[index];
  const PageMove& move = job.move;
  const std::int64_t now = clock->now_ns();
  LinkStats& stats = links[job.link].stats;
  stats.bytes[static_cast<std::size_t>(move.cause)] += bytes;
  if (job.phase == Phase::kStarted) {
    count_time(links[job.link], now);
    --links[job.link].under_way[static_cast<std::size_t>(move.urgency)];
    stats.by_mover[job.way].bytes += bytes;
    stats.by_mover[job.way].jobs += code == Code::kOk;
  }
  if (code == Code::kOk) {
    ++stats.jobs[static_cast<std::size_t>(move.cause)];
    ++totals.finished;
  } else if (code == Code::kCancelled) {
    ++totals.cancelled;
  } else {
    ++totals.failed[reason_index(reason)];
  }
  if (events.size() < event_ring) {
    events.push_back({job.submitted_ns, job.started_ns, now, id_of(index), move.page, job.link,
                      move.cause, code, reason, bytes});
  } else {
    ++totals.events_dropped;
  }
  results.push_back(
      {id_of(index), move.page, move.version, move.from, move.to, code, reason, bytes});

  Tier& from = tiers[move.from.tier];
  job.source.end();
  if (from.file != nullptr && from.doomed[move.from.slot] &&
      from.store->slots().leases_on(move.from.slot) == 0) {
    [[maybe_unused]] const Status forgotten = forget(move.from);
  }
  job.destination.end();
  if (job.own_slot) {
    own_slots.erase(slot_name(move.to));
    if (code != Code::kOk) {
      [[maybe_unused]] const Status released =
          tiers[move.to.tier].store->slots().release(move.to.slot);
    }
  }
  const auto ticket = open_tickets.find(job.ticket);
  if (--ticket->second == 0) open_tickets.erase(ticket);
  job.phase = Phase::kNone;
  job.started_ns = 0;
  free_jobs.push_back(index);
  --unfinished;
  finished_cv.notify_all();
}

void Core::set_share(LinkId link, double share) const {
  for (const std::uint32_t mover : links[link].movers) movers[mover]->set_share(share);
}

std::vector<int> Core::event_fds() const {
  std::vector<int> fds;
  for (const auto& mover : movers) fds.push_back(mover->event_fd());
  for (const Tier& tier : tiers) fds.push_back(tier.store->slots().event_fd());
  return fds;
}

}  // namespace lehr::transfer
