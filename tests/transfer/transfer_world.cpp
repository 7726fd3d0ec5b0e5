// SPDX-License-Identifier: Apache-2.0
#include "tests/transfer/transfer_world.hpp"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "transfer/arena.hpp"
#include "transfer/page_file.hpp"

namespace lehr::transfer::test {
namespace {

std::uint64_t word_of(std::uint64_t page, std::uint64_t version, std::size_t index) {
  return Rng::mix((page << 32) ^ (version << 8) ^ index);
}

class GatedMover final : public Mover {
 public:
  GatedMover(std::unique_ptr<Mover> inner, Gate& gate) : inner_(std::move(inner)), gate_(gate) {}
  const MoverTraits& traits() const override { return inner_->traits(); }
  Probe probe() const override { return inner_->probe(); }
  int event_fd() const override { return inner_->event_fd(); }

 private:
  std::size_t do_submit(std::span<const Job> jobs) override {
    const std::lock_guard lock(mutex_);
    held_.insert(held_.end(), jobs.begin(), jobs.end());
    pass_on();
    return jobs.size();
  }
  std::size_t do_poll(std::span<Completion> out) override {
    const std::lock_guard lock(mutex_);
    pass_on();
    return inner_->poll(out);
  }
  std::size_t do_cancel(std::span<const JobId> ids) override { return inner_->cancel(ids); }
  Load load() override { return {held_.size(), 0}; }
  void pass_on() {
    while (gate_.open && !held_.empty() && inner_->submit({&held_.front(), 1}) == 1) {
      held_.pop_front();
    }
  }

  std::unique_ptr<Mover> inner_;
  Gate& gate_;
  std::mutex mutex_;
  std::deque<Job> held_;
};

}  // namespace

void fill(std::span<std::byte> bytes, std::uint64_t page, std::uint64_t version) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = word_of(page, version, i);
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

bool is_filled(std::span<const std::byte> bytes, std::uint64_t page, std::uint64_t version) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    if (word != word_of(page, version, i)) return false;
  }
  return true;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "lehr-test-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t TemporaryDirectory::entries() const {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
  return count;
}

void SeqPoints::reach(const std::string& name) {
  const std::lock_guard lock(mutex_);
  reached_.insert(name);
  reached_cv_.notify_all();
}

void SeqPoints::await(const std::string& name) {
  std::unique_lock lock(mutex_);
  reached_cv_.wait(lock, [&] { return reached_.count(name) != 0; });
}

std::unique_ptr<Mover> make_gated(std::unique_ptr<Mover> inner, Gate& gate) {
  return std::make_unique<GatedMover>(std::move(inner), gate);
}

WorldConfig with_plan(const std::string& plan) {
  WorldConfig config;
  auto parsed = FaultPlan::parse(plan);
  REQUIRE(parsed);
  config.faults = *parsed;
  return config;
}

WorldConfig one_load_at_a_time(Gate& gate) {
  gate.open = false;
  WorldConfig config;
  config.gate = &gate;
  config.limits.bytes_per_second = 4096e3;  // a depth of one page
  return config;
}

World::World(const WorldConfig& config) {
  EngineParts parts;
  FileMoverConfig file_mover;
  const bool guard = config.faults.guards(Guard::kLeases);
  for (const auto& [name, pages] : {std::pair{"hbm", config.hbm}, std::pair{"host", config.host}}) {
    ArenaConfig arena;
    arena.name = name;
    arena.pages = pages;
    arena.page_bytes = config.page_bytes;
    arena.guard_leases = guard;
    HostMemoryConfig memory;
    memory.bytes = Arena::bytes_for(arena);
    auto region = host_region(memory);
    REQUIRE(region);
    auto made = Arena::create(arena, *std::move(region));
    REQUIRE(made);
    file_mover.buffers.push_back((*made)->memory());
    parts.tiers.push_back(*std::move(made));
  }
  PageFileConfig file;
  file.name = "nvme";
  file.pages = config.nvme;
  file.page_bytes = config.page_bytes;
  file.extent_bytes = 256 * kKiB;
  file.keep = !config.kept_file.empty();
  file.path = file.keep ? config.kept_file : directory_.path();
  file.guard_leases = guard;
  auto opened = PageFile::open(file);
  if (!opened) FAIL(opened.error().what);
  file_mover.files.push_back((*opened)->fd());
  parts.tiers.push_back(*std::move(opened));

  auto copy = make_host_copy({2, 256});
  auto gated_copy = make_host_copy({1, 256});
  auto files = config.use_uring ? make_file_uring(file_mover) : make_file_pread({2, 256});
  REQUIRE(copy);
  REQUIRE(gated_copy);
  // Where io_uring is refused the same stories are told by pread.
  if (!files) files = make_file_pread({2, 256});
  REQUIRE(files);
  parts.movers.push_back(*std::move(copy));
  parts.movers.push_back(*std::move(files));
  parts.movers.push_back(config.gate != nullptr ? make_gated(*std::move(gated_copy), *config.gate)
                                                : *std::move(gated_copy));
  parts.links = {{"hbm to host", kHbm, kHost, config.limits, {}},
                 {"host to hbm", kHost, kHbm, config.limits, 2},
                 {"host to nvme", kHost, kNvme, config.store_limits.value_or(config.limits), {}},
                 {"nvme to host", kNvme, kHost, config.limits, {}}};
  parts.faults = config.faults;
  parts.clock = config.clock;
  parts.max_jobs = config.max_jobs;
  auto engine = TransferEngine::create(std::move(parts));
  if (!engine) FAIL(engine.error().what);
  engine_ = *std::move(engine);
}

World::~World() = default;

SlotId World::take(TierId tier) {
  SlotId slot = kNoSlot;
  REQUIRE(engine_->allocate(tier, {&slot, 1}));
  return slot;
}

std::span<std::byte> World::bytes(Place place) {
  auto* arena = dynamic_cast<Arena*>(&engine_->tier(place.tier));
  REQUIRE(arena != nullptr);
  return arena->page(place.slot);
}

Place World::make(TierId tier, PageId page, std::uint32_t version) {
  const Place place{tier, take(tier)};
  fill(bytes(place), page, version);
  REQUIRE(engine_->stamp(place, page, version));
  return place;
}

bool World::intact(Place place, PageId page, std::uint32_t version) {
  return engine_->holds(place, page, version) && is_filled(bytes(place), page, version);
}

Submission World::submit(const PageMove& move) {
  Submission out;
  engine_->submit({&move, 1}, {&out, 1});
  return out;
}

Submission World::submit_load(PageId page) {
  return submit(move_of(page, make(kHost, page), {kHbm, kNoSlot}));
}

MoveResult World::run(const PageMove& move) {
  const Submission out = submit(move);
  REQUIRE(out.job != 0);
  REQUIRE(engine_->wait_all(kLong));
  return next_result();
}

MoveResult World::next_result() {
  MoveResult result;
  REQUIRE(engine_->poll({&result, 1}) == 1);
  return result;
}

void World::validate() {
  for (TierId t = 0; t < engine_->tiers(); ++t) {
    const Status valid = engine_->tier(t).slots().validate();
    if (!valid) FAIL(valid.error().what);
  }
}

PageMove move_of(PageId page, Place from, Place to, std::uint32_t version) {
  PageMove move;
  move.page = page;
  move.version = version;
  move.from = from;
  move.to = to;
  return move;
}

}  // namespace lehr::transfer::test
