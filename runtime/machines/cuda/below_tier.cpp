// SPDX-License-Identifier: Apache-2.0
#include "runtime/machines/cuda/below_tier.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/core.h>

#include "transfer/arena.hpp"
#include "transfer/host_engine.hpp"
#include "transfer/page_file.hpp"

namespace lehr::runtime::cuda {

namespace {

constexpr TierId kMemory = 0, kFile = 1;
constexpr std::uint32_t kReaders = 8;
constexpr std::uint32_t kDepth = 128;
constexpr std::uint32_t kJobs = 1U << 17;  ///< every spare place at once, and more

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Result<transfer::PageFileConfig> file_of(const BelowConfig& config) {
  transfer::PageFileConfig file;
  file.name = config.name;
  file.pages = config.slots;
  file.page_bytes = config.page_bytes;
  auto folder = transfer::scratch_folder(config.options.directory);
  if (!folder) return not_found(file.name + ": " + folder.error().what);
  file.path = *std::move(folder);
  return file;
}

Result<std::unique_ptr<transfer::TransferEngine>> make_engine(const BelowConfig& config,
                                                              std::uint32_t places) {
  transfer::EngineParts parts;
  transfer::ArenaConfig arena;
  arena.name = config.home;
  arena.pages = places;
  arena.page_bytes = config.page_bytes;
  transfer::MemoryRegion region;
  region.base = config.host.data();
  region.bytes = config.host.size();
  LEHR_ASSIGN(auto memory, transfer::Arena::create(arena, std::move(region)));
  LEHR_ASSIGN(const auto file_config, file_of(config));
  LEHR_ASSIGN(auto file, transfer::PageFile::open(file_config));
  if (config.options.use_uring) {
    transfer::FileMoverConfig movers;
    movers.files.push_back(file->fd());
    movers.buffers.push_back(memory->memory());
    movers.depth = kDepth;
    movers.queue = 4096;
    std::string notice;
    LEHR_ASSIGN(auto mover, transfer::make_file_mover(movers, notice));
    if (!notice.empty()) parts.notices.push_back(std::move(notice));
    parts.movers.push_back(std::move(mover));
  } else {
    LEHR_ASSIGN(auto mover, transfer::make_file_pread({kReaders, 4096}));
    parts.movers.push_back(std::move(mover));
  }
  parts.tiers.push_back(std::move(memory));
  parts.tiers.push_back(std::move(file));
  parts.links.push_back({config.home + " to " + config.name, kMemory, kFile, {}, {}});
  parts.links.push_back({config.name + " to " + config.home, kFile, kMemory, {}, {}});
  parts.faults = config.options.faults;
  parts.max_jobs = kJobs;
  LEHR_ASSIGN(auto engine, transfer::TransferEngine::create(std::move(parts)));
  LEHR_TRY(transfer::take_all_slots(*engine, kMemory));
  LEHR_TRY(transfer::take_all_slots(*engine, kFile));
  return engine;
}

}  // namespace

BelowTier::BelowTier(HomeSlots& slots, const BelowConfig& config,
                     std::unique_ptr<transfer::TransferEngine> engine)
    : slots_(slots),
      config_(config),
      engine_(std::move(engine)),
      arrivals_(slots.places(), Arrival::kThere) {}

Result<std::unique_ptr<BelowTier>> BelowTier::create(const BelowConfig& config, HomeSlots& slots) {
  LEHR_ASSIGN(auto engine, make_engine(config, slots.places()));
  return std::unique_ptr<BelowTier>(new BelowTier(slots, config, std::move(engine)));
}

// ---------------------------------------------------------------------- listing

Result<std::uint32_t> BelowTier::into(SlotId home, Launches listed) {
  std::uint32_t place = slots_.place(home);
  if (slots_.in_transfer(place)) {
    const auto free = slots_.take();
    if (!free)
      return refused(Reason::kOverBudget, "cuda machine: no spare place in host memory is free");
    place = *free;
    slots_.rename(home, place, listed);
  }
  slots_.fill(place, listed);
  return place;
}

Result<std::optional<std::uint32_t>> BelowTier::stage(PageId page, std::uint32_t version,
                                                      SlotId from, SlotId home, Launches listed) {
  if (const auto at = writes_.find(from); at != writes_.end()) {
    const Write& write = at->second;
    if (write.page != page || write.version != version) {
      return corrupt(fmt::format("{}, slot {}: expected page {} version {}, page {} version {} "
                                 "goes there",
                                 config_.name, from, page, version, write.page, write.version),
                     Reason::kChecksum);
    }
    slots_.use(write.place, listed);
    ++copied_;
    return std::optional(write.place);
  }
  const auto place = slots_.take();
  if (!place)
    return refused(Reason::kOverBudget, "cuda machine: no spare place in host memory is free");
  slots_.rename(home, *place, listed);
  slots_.begin_transfer(*place);
  arrivals_[*place] = Arrival::kComing;
  transfer::PageMove move;
  move.page = page;
  move.version = version;
  move.from = {kFile, from};
  move.to = {kMemory, *place};
  move.cause = transfer::Cause::kPrefetch;
  reads_.push_back(move);
  return std::optional<std::uint32_t>();
}

Status BelowTier::sink(PageId page, std::uint32_t version, std::uint32_t place, SlotId to) {
  drop_write(to);  // of a page that is gone
  slots_.begin_transfer(place);
  const bool early = config_.options.writes_early;
  Write& write = writes_[to];
  write.page = page;
  write.version = version;
  write.place = place;
  write.after = early ? 0 : slots_.filled(place);
  waiting_.push_back(to);
  if (!early) return {};
  LEHR_TRY(start_writes(0));
  return engine_->wait_all(config_.options.bound_ns);
}

void BelowTier::drop_write(SlotId to) {
  const auto at = writes_.find(to);
  if (at == writes_.end()) return;
  const Write& write = at->second;
  if (write.job != 0 && !write.failed) {
    under_way_.insert(to);
  } else {
    slots_.end_transfer(write.place);
    std::erase(waiting_, to);
  }
  writes_.erase(at);
}

void BelowTier::need(std::uint32_t place) {
  if (arrivals_[place] != Arrival::kComing) return;
  arrivals_[place] = Arrival::kNeeded;
  ++needed_;
}

Status BelowTier::submit(bool launched) {
  if (reads_.empty() || (config_.options.reads_late && !launched)) return {};
  const auto needed = [&](const transfer::PageMove& m) {
    return arrivals_[m.to.slot] == Arrival::kNeeded;
  };
  std::stable_partition(reads_.begin(), reads_.end(), needed);
  for (transfer::PageMove& m : reads_) {
    if (!needed(m)) continue;
    m.cause = transfer::Cause::kDemandLoad;
    m.urgency = transfer::Urgency::kUrgent;
  }
  std::vector<transfer::Submission> said(reads_.size());
  (void)engine_->submit(reads_, said);
  reads_.clear();
  for (const transfer::Submission& s : said) {
    if (s.job == 0) {
      return Error{s.code == Code::kRefused ? Code::kInternal : s.code, s.reason,
                   "cuda machine: the transfer engine refused a read"};
    }
  }
  return {};
}

// ---------------------------------------------------------------------- what ends

void BelowTier::take(std::span<const transfer::MoveResult> results) {
  for (const transfer::MoveResult& r : results) {
    const bool up = r.to.tier == kMemory;
    const std::uint32_t place = up ? r.to.slot : r.from.slot;
    const bool good = r.code == Code::kOk;
    if (!good && failure_) {
      failure_ =
          Error{r.code, r.reason,
                fmt::format("moving page {} (version {}) from {} to {} failed", r.page, r.version,
                            engine_->tier(r.from.tier).name(), engine_->tier(r.to.tier).name())};
    }
    if (up) {
      if (std::exchange(arrivals_[place], Arrival::kThere) == Arrival::kNeeded) --needed_;
      slots_.end_transfer(place);
      read_ += good ? 1 : 0;
      continue;
    }
    const auto write = writes_.find(r.to.slot);
    const bool current = write != writes_.end() && write->second.job == r.job;
    if (current && !good) {  // its place keeps the page
      write->second.failed = true;
      continue;
    }
    if (current) {
      writes_.erase(write);
    } else {
      under_way_.erase(r.to.slot);
    }
    slots_.end_transfer(place);
    written_ += good ? 1 : 0;
  }
}

/// Those whose contents are there. One into a slot that a page that is gone is still being written
/// to waits for the end of that.
Status BelowTier::start_writes(Launches ended) {
  std::vector<transfer::PageMove> moves;
  std::vector<SlotId> held;
  while (!waiting_.empty() && writes_[waiting_.front()].after <= ended) {
    const SlotId to = waiting_.front();
    const Write& write = writes_[to];
    waiting_.pop_front();
    if (under_way_.count(to) != 0) {
      held.push_back(to);
      continue;
    }
    LEHR_TRY(engine_->stamp({kMemory, write.place}, write.page, write.version));
    transfer::PageMove move;
    move.page = write.page;
    move.version = write.version;
    move.from = {kMemory, write.place};
    move.to = {kFile, to};
    move.cause = transfer::Cause::kDemotion;
    moves.push_back(move);
  }
  waiting_.insert(waiting_.begin(), held.begin(), held.end());
  if (moves.empty()) return {};
  std::vector<transfer::Submission> said(moves.size());
  (void)engine_->submit(moves, said);
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (said[i].job == 0) {
      return Error{said[i].code == Code::kRefused ? Code::kInternal : said[i].code, said[i].reason,
                   "cuda machine: the transfer engine refused a write"};
    }
    writes_[moves[i].to.slot].job = said[i].job;
  }
  return {};
}

Status BelowTier::pump(Launches ended) {
  transfer::MoveResult results[64];
  for (std::size_t n = engine_->poll(results); n > 0; n = engine_->poll(results))
    take(std::span(results).first(n));
  if (Status started = start_writes(ended); !started && failure_) failure_ = std::move(started);
  return failure_;
}

Status BelowTier::wait_for_needed() {
  if (config_.options.reads_late) return {};
  const std::int64_t began = now_ns();
  transfer::MoveResult results[64];
  while (needed_ > 0 && failure_) {
    const std::int64_t left = config_.options.bound_ns - (now_ns() - began);
    const std::size_t n = left > 0 ? engine_->wait_some(results, left) : 0;
    if (n == 0) {
      return refused(Reason::kPending,
                     fmt::format("{}: {} pages that a step reads have not arrived within {} ms",
                                 config_.name, needed_, config_.options.bound_ns / 1'000'000));
    }
    take(std::span(results).first(n));
  }
  waited_ += static_cast<double>(now_ns() - began) * 1e-9;
  LEHR_TRY(failure_);
  for (auto& [to, write] : writes_) write.listed = false;  // they are handed over now
  return {};
}

Status BelowTier::settle(Launches ended, std::int64_t bound_ns) {
  LEHR_TRY(submit(true));
  const std::int64_t began = now_ns();
  transfer::MoveResult results[64];
  for (;;) {
    (void)pump(ended);  // failures are kept
    const std::int64_t left = bound_ns - (now_ns() - began);
    const std::size_t n = left > 0 ? engine_->wait_some(results, left) : engine_->poll(results);
    take(std::span(results).first(n));
    if (n > 0) continue;
    if (engine_->stats().unfinished == 0) return failure_;
    return refused(Reason::kPending, config_.name + ": transfers do not end");
  }
}

void BelowTier::rollback() {
  for (const transfer::PageMove& m : reads_) {  // not even handed over
    arrivals_[m.to.slot] = Arrival::kThere;
    slots_.end_transfer(m.to.slot);
  }
  reads_.clear();
  for (Arrival& a : arrivals_) a = a == Arrival::kNeeded ? Arrival::kComing : a;
  needed_ = 0;
  std::vector<SlotId> gone;
  for (const auto& [to, write] : writes_) {
    if (write.listed) gone.push_back(to);
  }
  for (const SlotId to : gone) drop_write(to);
}

Result<std::vector<std::uint8_t>> BelowTier::fetch(std::span<const Wanted> wanted) {
  const auto& memory = static_cast<const transfer::Arena&>(engine_->tier(kMemory));
  std::vector<std::uint8_t> good(wanted.size(), 0);
  std::vector<transfer::PageMove> moves;
  std::unordered_map<std::uint32_t, std::size_t> at_place;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Wanted& w = wanted[i];
    if (const auto at = writes_.find(w.from); at != writes_.end()) {
      const auto from = memory.page(at->second.place);
      std::copy(from.begin(), from.end(), memory.page(w.place).begin());
      good[i] = at->second.page == w.page && at->second.version == w.version ? 1 : 0;
      continue;
    }
    transfer::PageMove move;
    move.page = w.page;
    move.version = w.version;
    move.from = {kFile, w.from};
    move.to = {kMemory, w.place};
    moves.push_back(move);
    at_place[w.place] = i;
  }
  std::vector<transfer::Submission> said(moves.size());
  (void)engine_->submit(moves, said);
  LEHR_TRY(engine_->wait_all(kPatientNs));
  transfer::MoveResult results[64];
  for (std::size_t n = engine_->poll(results); n > 0; n = engine_->poll(results)) {
    for (const transfer::MoveResult& r : std::span(results).first(n)) {
      const auto at = at_place.find(r.to.slot);
      if (r.to.tier != kMemory || at == at_place.end()) {
        take({&r, 1});  // of a page that was on its way
      } else {
        good[at->second] = r.code == Code::kOk ? 1 : 0;
      }
    }
  }
  return good;
}

Seconds BelowTier::busy(LinkId link) const {
  const transfer::LinkStats stats = engine_->stats().links[link];
  return static_cast<double>(stats.exposed_ns + stats.hidden_ns) * 1e-9;
}

std::vector<std::string> BelowTier::notes() const {
  const transfer::EngineStats stats = engine_->stats();
  std::vector<std::string> out;
  for (const transfer::LinkStats& link : stats.links) {
    for (const transfer::MoverShare& share : link.by_mover) {
      if (share.bytes > 0)
        out.push_back(fmt::format("{}: {} bytes moved by {}", link.name, share.bytes, share.mover));
    }
  }
  if (copied_ > 0) {
    out.push_back(
        fmt::format("{}: {} pages came back before they had gone down", config_.name, copied_));
  }
  out.insert(out.end(), stats.notices.begin(), stats.notices.end());
  return out;
}

}  // namespace lehr::runtime::cuda
