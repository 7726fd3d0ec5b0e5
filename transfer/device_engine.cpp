// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_engine.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <unordered_set>

#include "transfer/arena.hpp"
#include "transfer/cufile.hpp"
#include "transfer/relay.hpp"

namespace lehr::transfer {
namespace {

ArenaConfig arena_of(const DeviceEngineConfig& config, std::string name, SlotId pages) {
  ArenaConfig arena;
  arena.name = std::move(name);
  arena.pages = pages;
  arena.page_bytes = config.page_bytes;
  arena.alignment = config.alignment;
  arena.guard_leases = config.faults.guards(Guard::kLeases);
  return arena;
}

std::optional<DeviceCopy> copy_named(const std::string& name) {
  if (name == "ring") return DeviceCopy::kRing;
  if (name == "copy_engine") return DeviceCopy::kEngine;
  if (name == "driver_batch") return DeviceCopy::kBatch;
  if (name == "staged") return DeviceCopy::kStaged;
  return std::nullopt;
}

/// Collects tiers, movers and links of an engine to be.
class Builder {
 public:
  Builder(DeviceEngineConfig& config, DeviceEngine& out) : config_(config), out_(out) {}

  Status build() {
    LEHR_TRY(add_hbm());
    for (const DonorConfig& donor : config_.donors) LEHR_TRY(add_donor(donor));
    if (config_.host_pages != 0) LEHR_TRY(add_host());
    LEHR_TRY(link_memory());
    LEHR_TRY(add_files());
    parts_.faults = std::move(config_.faults);
    parts_.clock = config_.clock;
    parts_.max_jobs = config_.max_jobs;
    LEHR_ASSIGN(out_.engine, TransferEngine::create(std::move(parts_)));
    return {};
  }

 private:
  Status add_hbm() {
    const SlotId reserve = std::max(config_.hbm_pages, config_.hbm_reserve);
    const ArenaConfig arena = arena_of(config_, "hbm", reserve);
    DeviceMemoryConfig memory;
    memory.device = config_.device;
    memory.bytes = Arena::stride_for(arena) * config_.hbm_pages;
    memory.reserve = Arena::bytes_for(arena);
    for (const DonorConfig& donor : config_.donors) memory.readers.push_back(donor.device);
    auto made = DeviceMemory::create(memory);
    if (!made && !memory.readers.empty()) {
      // A donor that may not read this device's memory still gives its own.
      memory.readers.clear();
      made = DeviceMemory::create(memory);
    }
    if (!made) return made.error();
    out_.hbm = *std::move(made);
    return add_arena(arena, region_of(out_.hbm), config_.hbm_pages);
  }

  Status add_donor(const DonorConfig& donor) {
    ArenaConfig arena = arena_of(config_, donor.name, donor.pages);
    DeviceMemoryConfig memory;
    memory.device = donor.device;
    memory.bytes = Arena::bytes_for(arena);
    memory.readers = {config_.device};
    Status access = peer_access(config_.device, donor.device);
    auto made = access ? DeviceMemory::create(memory)
                       : Result<std::shared_ptr<DeviceMemory>>(access.error());
    if (made) {
      out_.donors.push_back(*made);
      return add_arena(arena, region_of(*made), donor.pages);
    }
    parts_.notices.push_back(donor.name + ": left out (" + made.error().what + ")");
    out_.donors.push_back(nullptr);
    // Its place among the tiers stays, without a slot, so that ids do not depend on luck.
    arena.pages = 1;
    LEHR_ASSIGN(MemoryRegion none, host_region({Arena::bytes_for(arena), {}, 1, false, true}));
    none.space = Space::kDeviceMemory;
    none.unit = donor.device;
    return add_arena(arena, std::move(none), 0);
  }

  Status add_host() {
    const ArenaConfig arena = arena_of(config_, "host", config_.host_pages);
    PinnedMemoryConfig memory;
    memory.memory.bytes = Arena::bytes_for(arena);
    memory.memory.touch_threads = config_.touch_threads;
    memory.memory.numa_node = config_.numa_node;
    if (!memory.memory.numa_node) {
      for (const DeviceInfo& device : devices()) {
        if (device.ordinal == config_.device) memory.memory.numa_node = device.numa_node;
      }
    }
    memory.page_stride = Arena::stride_for(arena);
    LEHR_ASSIGN(out_.host, PinnedMemory::create(memory));
    out_.host_tier = static_cast<TierId>(parts_.tiers.size());
    return add_arena(arena, region_of(out_.host), 0);
  }

  Status add_arena(const ArenaConfig& config, MemoryRegion region, SlotId usable) {
    LEHR_ASSIGN(auto arena, Arena::create(config, std::move(region)));
    arena->slots().set_limit(usable);
    memory_.push_back(arena.get());
    parts_.tiers.push_back(std::move(arena));
    return {};
  }

  Status link_memory() {
    for (std::size_t a = 0; a < memory_.size(); ++a) {
      for (std::size_t b = 0; b < memory_.size(); ++b) {
        if (a != b) LEHR_TRY(link(static_cast<TierId>(a), static_cast<TierId>(b)));
      }
    }
    return {};
  }

  Status link(TierId from, TierId to) {
    const bool host =
        memory_[from]->space() == Space::kHostMemory || memory_[to]->space() == Space::kHostMemory;
    DeviceMoverConfig mover;
    mover.device = config_.device;
    mover.copy = host ? config_.host_copy : config_.peer_copy;
    mover.ring = host ? config_.host_ring : config_.peer_ring;
    if (!host) {
      mover.batch_bytes = 192 * kMiB;
      if (memory_[to]->address(0).unit == config_.device) {
        mover.ring.ctas = std::min(mover.ring.ctas, config_.peer_read_ctas);
      }
      mover.urgent_ctas = 32;
    }
    if (out_.host != nullptr) {
      mover.seam_base = out_.host->base();
      mover.seam_bytes = out_.host->chunk_bytes();
    }
    LinkConfig link{memory_[from]->name() + " to " + memory_[to]->name(), from, to,
                    host ? config_.host_limits : config_.peer_limits,     {},   {}};
    LEHR_TRY(add_movers(curves_of(from, to), mover, link));
    parts_.links.push_back(std::move(link));
    return {};
  }

  /// What was measured of a way, where the serving device's HBM is one of its ends.
  std::span<const MoverCurve> curves_of(TierId from, TierId to) const {
    const DeviceMovers& m = config_.measured;
    const bool in = to == kHbm;
    if (from != kHbm && !in) return {};
    if (memory_[in ? from : to]->space() == Space::kHostMemory) return in ? m.host_in : m.host_out;
    return in ? m.peer_in : m.peer_out;
  }

  /// One mover for each that was measured, or the one that the configuration names.
  Status add_movers(std::span<const MoverCurve> curves, const DeviceMoverConfig& config,
                    LinkConfig& link) {
    std::map<std::string, std::uint32_t> known;
    for (const MoverCurve& curve : curves) {
      const auto copy = copy_named(curve.mover);
      if (!copy) {
        parts_.notices.push_back(link.name + ": no mover is called " + curve.mover);
        continue;
      }
      if (known.count(curve.mover) == 0) {
        DeviceMoverConfig other = config;
        other.copy = *copy;
        LEHR_ASSIGN(auto made, make_device_mover(other));
        known[curve.mover] = static_cast<std::uint32_t>(parts_.movers.size());
        parts_.movers.push_back(std::move(made));
      }
      link.measured.push_back({known[curve.mover], curve});
    }
    if (!link.measured.empty()) return {};
    LEHR_ASSIGN(auto made, make_device_mover(config));
    link.mover = static_cast<std::uint32_t>(parts_.movers.size());
    parts_.movers.push_back(std::move(made));
    return {};
  }

  Status add_files() {
    if (config_.files.empty()) return {};
    if (out_.host == nullptr) return invalid("a file tier needs a host tier");
    FileMoverConfig mover;
    for (PageFileConfig file : config_.files) {
      file.page_bytes = config_.page_bytes;
      file.guard_leases = config_.faults.guards(Guard::kLeases);
      LEHR_ASSIGN(auto made, PageFile::open(file));
      mover.files.push_back(made->fd());
      const auto tier = static_cast<TierId>(parts_.tiers.size());
      const auto index = static_cast<std::uint32_t>(parts_.movers.size());
      const std::string name = made->name();
      link_file("host", out_.host_tier, name, tier, index);
      parts_.tiers.push_back(std::move(made));
    }
    const FileMoverConfig files = mover;
    std::string notice;
    LEHR_ASSIGN(auto made, make_file_mover(mover, notice));
    if (!notice.empty()) parts_.notices.push_back(std::move(notice));
    parts_.movers.push_back(std::move(made));
    return config_.relay_pages != 0 ? add_relay(files) : Status();
  }

  void link_file(const std::string& memory, TierId memory_tier, const std::string& file,
                 TierId tier, std::uint32_t mover) {
    parts_.links.push_back(
        {memory + " to " + file, memory_tier, tier, config_.file_limits, mover, {}});
    parts_.links.push_back(
        {file + " to " + memory, tier, memory_tier, config_.file_limits, mover, {}});
  }

  /// Between files and HBM: cuFile where it is asked for and there, else a relay.
  Status add_relay(const FileMoverConfig& files) {
    LEHR_ASSIGN(auto made, file_to_device(files));
    const auto index = static_cast<std::uint32_t>(parts_.movers.size());
    parts_.movers.push_back(std::move(made));
    const auto first = static_cast<std::size_t>(out_.host_tier) + 1;
    for (std::size_t t = first; t < parts_.tiers.size(); ++t)
      link_file("hbm", kHbm, parts_.tiers[t]->name(), static_cast<TierId>(t), index);
    return {};
  }

  Result<std::unique_ptr<Mover>> file_to_device(FileMoverConfig files) {
    if (config_.try_cufile) {
      CuFileConfig straight;
      straight.files = files.files;
      straight.fetch = fetch_from_device;
      auto made = make_file_cufile(straight);
      if (made) return made;
      parts_.notices.push_back(made.error().what + "; files reach hbm through a ring");
    }
    RelayConfig relay;
    relay.slot_bytes = memory_.front()->stride();
    PinnedMemoryConfig ring;
    ring.memory.bytes = relay.slot_bytes * config_.relay_pages;
    ring.chunk_bytes = ring.memory.bytes;  // one piece: no copy may cross a seam
    ring.page_stride = relay.slot_bytes;
    LEHR_ASSIGN(auto pinned, PinnedMemory::create(ring));
    LEHR_TRY(pinned->wait(60'000'000'000));
    relay.ring = region_of(pinned);
    files.buffers = {{pinned->base(), pinned->size()}};
    std::string notice;
    LEHR_ASSIGN(relay.file, make_file_mover(files, notice));
    DeviceMoverConfig copy;
    copy.device = config_.device;
    copy.copy = config_.host_copy;
    copy.ring = config_.host_ring;
    LEHR_ASSIGN(relay.copy, make_device_mover(copy));
    return make_relay(std::move(relay));
  }

  DeviceEngineConfig& config_;
  DeviceEngine& out_;
  EngineParts parts_;
  std::vector<Arena*> memory_;
};

}  // namespace

Result<DeviceEngine> make_device_engine(DeviceEngineConfig config) {
  DeviceEngine made;
  LEHR_TRY(Builder(config, made).build());
  made.serve_ready_host();
  return made;
}

bool DeviceEngine::serve_ready_host() {
  if (host == nullptr) return true;
  SlotPool& slots = engine->tier(host_tier).slots();
  const Bytes stride = engine->tier(host_tier).stride();
  const auto ready = static_cast<SlotId>(host->ready_bytes() / stride);
  const SlotId capacity = slots.usage().capacity;
  if (slots.limit() < std::min(ready, capacity)) slots.set_limit(ready);
  return slots.limit() == capacity;
}

Status DeviceEngine::resize(TierId tier, SlotId pages) {
  if (tier > donors.size()) return invalid("only hbm and donors change size", Reason::kOutOfRange);
  const auto& memory = tier == kHbm ? hbm : donors[tier - 1U];
  if (memory == nullptr) return unsupported("that donor was left out");
  Store& store = engine->tier(tier);
  SlotPool& slots = store.slots();
  const SlotId before = slots.limit();
  const Bytes bytes = pages * store.stride();
  if (pages > slots.usage().capacity) {
    return refused(Reason::kOverBudget, store.name() + ": " + std::to_string(pages) +
                                            " pages asked for, addresses are reserved for " +
                                            std::to_string(slots.usage().capacity));
  }
  if (pages < before || bytes < memory->mapped()) {
    // The limit may be there already, with pages past it that are still to be moved.
    slots.set_limit(std::min(pages, before));
    if (const SlotId used = slots.in_use_past_limit(); used != 0) {
      slots.set_limit(before);
      return refused(Reason::kLeased, store.name() + ": " + std::to_string(used) +
                                          " slots that would go are in use");
    }
  }
  LEHR_TRY(memory->resize(bytes));
  slots.set_limit(pages);
  return {};
}

Evacuation evacuate(TransferEngine& engine, TierId from, SlotId first_slot, TierId to,
                    std::int64_t bound_ns) {
  Evacuation result;
  SlotPool& slots = engine.tier(from).slots();
  slots.set_limit(std::min(first_slot, slots.limit()));
  std::vector<PageMove> moves;
  for (const FoundPage& found : engine.contents(from)) {
    if (found.slot < first_slot) continue;
    PageMove move;
    move.page = found.page;
    move.version = found.version;
    move.from = {from, found.slot};
    move.to = {to, kNoSlot};
    move.cause = Cause::kDemotion;
    move.urgency = Urgency::kUrgent;
    moves.push_back(move);
  }
  std::vector<Submission> said(moves.size());
  engine.submit(moves, said);
  std::unordered_set<JobId> mine;
  for (const Submission& s : said) {
    if (s.job != 0) mine.insert(s.job);
    if (s.job == 0) ++result.refused[static_cast<std::size_t>(s.reason) % kReasons];
  }
  const SteadyClock clock;
  const std::int64_t end = clock.now_ns() + bound_ns;
  std::vector<MoveResult> batch(1024);
  while (!mine.empty()) {
    const std::int64_t left = end - clock.now_ns();
    const std::size_t count = engine.wait_some(batch, std::max<std::int64_t>(left, 0));
    for (const MoveResult& r : std::span(batch).first(count)) {
      if (mine.erase(r.job) == 0) {
        result.others.push_back(r);
        continue;
      }
      result.moved.push_back(r);
      if (r.code == Code::kOk) {
        [[maybe_unused]] const Status released = engine.release(r.from);
      }
    }
    if (left <= 0) {
      // What has not started stays; what has started is waited for by whoever polls next.
      const std::vector<JobId> rest(mine.begin(), mine.end());
      if (engine.cancel(rest) == 0) break;
    }
  }
  result.left = slots.in_use_past_limit();
  return result;
}

}  // namespace lehr::transfer
