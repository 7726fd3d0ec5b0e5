// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include <catch2/catch.hpp>
#include <fcntl.h>

#include "kernels/base/rng.hpp"
#include "tests/transfer/transfer_world.hpp"
#include "transfer/arena.hpp"
#include "transfer/cufile.hpp"
#include "transfer/movers/job_queue.hpp"
#include "transfer/page_file.hpp"
#include "transfer/relay.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

constexpr Bytes kPage = 8192;
constexpr SlotId kPages = 96;

enum class Kind {
  kHostCopy,
  kPread,
  kUring,
  kUringBuffered,
  kFaultyWithoutFaults,
  kRelay,
  kCuFile
};
enum class Way { kCopy, kRead, kWrite };

/// Two places for pages, and a mover that goes between them.
struct Bench {
  TemporaryDirectory directory;
  std::unique_ptr<Arena> memory, other;
  std::unique_ptr<PageFile> file;
  SteadyClock clock;
  FaultInjector injector{FaultPlan{}};
  std::unique_ptr<Mover> mover;
  Way way = Way::kCopy;

  static std::unique_ptr<Arena> arena() {
    ArenaConfig config;
    config.name = "memory";
    config.pages = kPages;
    config.page_bytes = kPage;
    HostMemoryConfig memory_config;
    memory_config.bytes = Arena::bytes_for(config);
    auto region = host_region(memory_config);
    REQUIRE(region);
    auto made = Arena::create(config, *std::move(region));
    REQUIRE(made);
    return *std::move(made);
  }

  Bench(Kind kind, Way w, std::uint32_t depth, std::uint32_t queue) : way(w) {
    memory = arena();
    other = arena();
    PageFileConfig config;
    config.name = "file";
    config.path = directory.path();
    config.pages = kPages;
    config.page_bytes = kPage;
    config.direct = kind != Kind::kUringBuffered;
    auto opened = PageFile::open(config);
    REQUIRE(opened);
    file = *std::move(opened);
    FileMoverConfig files;
    files.depth = depth;
    files.queue = queue;
    if (kind != Kind::kUringBuffered) {
      files.files = {file->fd()};
      files.buffers = {memory->memory()};
    }
    auto made = kind == Kind::kHostCopy ? make_host_copy({depth, queue})
                : kind == Kind::kPread  ? make_file_pread({depth, queue})
                                        : make_file_uring(files);
    // Where io_uring is refused its place is taken by pread, as in the product.
    if (!made && made.error().code == Code::kUnsupported) made = make_file_pread({depth, queue});
    REQUIRE(made);
    mover = *std::move(made);
    if (kind == Kind::kFaultyWithoutFaults) {
      mover = make_faulty(std::move(mover), injector, clock);
    }
    if (kind == Kind::kRelay) mover = relay(std::move(mover), depth, queue);
    if (kind == Kind::kCuFile) mover = plug_in(depth, queue);
  }

  /// The file mover, and copies between the ring and memory that stands for a device's.
  static std::unique_ptr<Mover> relay(std::unique_ptr<Mover> file, std::uint32_t slots,
                                      std::uint32_t queue) {
    RelayConfig config;
    HostMemoryConfig ring;
    ring.bytes = std::max(slots, 2U) * kPage;
    auto region = host_region(ring);
    REQUIRE(region);
    config.ring = *std::move(region);
    config.slot_bytes = kPage;
    config.file = std::move(file);
    auto copy = make_host_copy({1, 1024});
    REQUIRE(copy);
    config.copy = *std::move(copy);
    config.far = Space::kHostMemory;
    config.queue = queue;
    auto made = make_relay(std::move(config));
    REQUIRE(made);
    return *std::move(made);
  }
  std::unique_ptr<Mover> plug_in(std::uint32_t threads, std::uint32_t queue) const {
    CuFileConfig config;
    config.library = LEHR_FAKE_CUFILE;
    config.files = {file->fd()};
    config.threads = threads;
    config.queue = queue;
    config.far = Space::kHostMemory;
    config.fetch = [](std::byte* to, const std::byte* from, Bytes bytes) -> Status {
      std::memcpy(to, from, bytes);
      return {};
    };
    auto made = make_file_cufile(config);
    REQUIRE(made);
    return *std::move(made);
  }

  Address source(SlotId slot) const {
    return way == Way::kRead ? file->address(slot) : memory->address(slot);
  }
  Address destination(SlotId slot) const {
    if (way == Way::kCopy) return other->address(slot);
    return way == Way::kRead ? memory->address(slot) : file->address(slot);
  }
  void write_source(SlotId slot, std::uint64_t page) {
    fill(memory->page(slot), page, 1);
    if (way != Way::kRead) return;
    REQUIRE(::pwrite(file->fd(), memory->page(slot).data(), kPage,
                     static_cast<off_t>(file->address(slot).offset)) ==
            static_cast<ssize_t>(kPage));
    std::memset(memory->page(slot).data(), 0, kPage);
  }
  bool destination_is(SlotId slot, std::uint64_t page) {
    if (way == Way::kCopy) return is_filled(other->page(slot), page, 1);
    if (way == Way::kRead) return is_filled(memory->page(slot), page, 1);
    REQUIRE(::pread(file->fd(), other->page(0).data(), kPage,
                    static_cast<off_t>(file->address(slot).offset)) == static_cast<ssize_t>(kPage));
    return is_filled(other->page(0), page, 1);
  }
  Job job(JobId id, SlotId from, SlotId to, Urgency urgency = Urgency::kBackground) const {
    return {id, source(from), destination(to), kPage, Cause::kOther, urgency, 0};
  }
  std::vector<Completion> finish() {
    REQUIRE(mover->drain(kLong));
    std::vector<Completion> all(1024);
    all.resize(mover->poll(all));
    return all;
  }
};

struct Case {
  Kind kind;
  Way way;
};

Case any_mover() {
  return GENERATE(Case{Kind::kHostCopy, Way::kCopy}, Case{Kind::kPread, Way::kRead},
                  Case{Kind::kPread, Way::kWrite}, Case{Kind::kUring, Way::kRead},
                  Case{Kind::kUring, Way::kWrite}, Case{Kind::kUringBuffered, Way::kRead},
                  Case{Kind::kUringBuffered, Way::kWrite},
                  Case{Kind::kFaultyWithoutFaults, Way::kRead}, Case{Kind::kRelay, Way::kRead},
                  Case{Kind::kRelay, Way::kWrite}, Case{Kind::kCuFile, Way::kRead},
                  Case{Kind::kCuFile, Way::kWrite});
}

}  // namespace

TEST_CASE("Mover contract: every job of a batch completes once, with its bytes in place") {
  const Case c = any_mover();
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 8, 1024);
  std::vector<Job> jobs;
  for (SlotId s = 0; s < kPages; ++s) {
    bench.write_source(s, 1000 + s);
    jobs.push_back(bench.job(s + 1, s, s));
  }
  CHECK(bench.mover->submit({}) == 0);
  REQUIRE(bench.mover->submit(jobs) == jobs.size());
  std::map<JobId, int> seen;
  for (const Completion& done : bench.finish()) {
    ++seen[done.id];
    CHECK(done.code == Code::kOk);
    CHECK(done.bytes == kPage);
  }
  CHECK(seen.size() == kPages);
  for (SlotId s = 0; s < kPages; ++s) {
    CHECK(seen[s + 1] == 1);
    CHECK(bench.destination_is(s, 1000 + s));
  }
  const MoverCounters counters = bench.mover->counters();
  CHECK(counters.accepted == kPages);
  CHECK(counters.finished == kPages);
  CHECK(counters.bytes == kPages * kPage);
  CHECK(counters.failed == 0);
}

TEST_CASE("Mover contract: a full queue takes the front of a batch only") {
  const Case c = any_mover();
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 2, 6);
  std::vector<Job> jobs;
  for (SlotId s = 0; s < 20; ++s) {
    bench.write_source(s, s);
    jobs.push_back(bench.job(s + 1, s, s));
  }
  const std::size_t taken = bench.mover->submit(jobs);
  CHECK(taken == 8);
  CHECK(bench.finish().size() == taken);
  // With the queue empty again the rest is taken too.
  CHECK(bench.mover->submit(std::span(jobs).subspan(taken, 8)) == 8);
  CHECK(bench.finish().size() == 8);
}

TEST_CASE("Mover contract: an urgent job of a batch goes first") {
  const Case c = any_mover();
  // Threads may take the first before the batch is complete; a relay has two on their way at once.
  if (c.kind == Kind::kPread || c.kind == Kind::kCuFile || c.kind == Kind::kRelay) return;
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 1, 64);
  if (c.kind == Kind::kFaultyWithoutFaults) return;  // passes jobs on one by one
  std::vector<Job> jobs;
  for (SlotId s = 0; s < 5; ++s) jobs.push_back(bench.job(s + 1, s, s));
  jobs.push_back(bench.job(99, 6, 6, Urgency::kUrgent));
  for (SlotId s = 0; s < 7; ++s) bench.write_source(s, s);
  REQUIRE(bench.mover->submit(jobs) == 6);
  const auto done = bench.finish();
  REQUIRE(done.size() == 6);
  CHECK(done[0].id == 99);
  for (std::size_t i = 1; i < 6; ++i) CHECK(done[i].id == i);
}

TEST_CASE("Mover contract: a cancelled job completes once and moves nothing") {
  const Case c = any_mover();
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 1, 1024);
  std::vector<Job> jobs;
  std::vector<JobId> ids;
  for (SlotId s = 0; s < kPages; ++s) {
    bench.write_source(s, s);
    jobs.push_back(bench.job(s + 1, s, s));
    if (s >= kPages / 2) ids.push_back(s + 1);
  }
  REQUIRE(bench.mover->submit(jobs) == jobs.size());
  const std::size_t cancelled = bench.mover->cancel(ids);
  CHECK(bench.mover->cancel({}) == 0);
  std::map<JobId, Code> seen;
  std::size_t said = 0;
  for (const Completion& done : bench.finish()) {
    CHECK(seen.emplace(done.id, done.code).second);
    said += done.code == Code::kCancelled;
  }
  CHECK(said == cancelled);
  REQUIRE(seen.size() == kPages);
  for (SlotId s = 0; s < kPages; ++s) {
    const bool moved = seen[s + 1] == Code::kOk;
    CHECK((moved || s >= kPages / 2));
    if (c.way != Way::kRead) CHECK(bench.destination_is(s, s) == moved);
  }
  CHECK(bench.mover->cancel(ids) == 0);
  CHECK(bench.mover->counters().cancelled == cancelled);
}

TEST_CASE("Mover contract: waiting on nothing ends at once, and the event descriptor wakes") {
  const Case c = any_mover();
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 4, 16);
  CHECK(bench.mover->wait(kLong));
  CHECK(bench.mover->drain(kLong));
  bench.write_source(0, 7);
  const Job job = bench.job(1, 0, 0);
  REQUIRE(bench.mover->submit({&job, 1}) == 1);
  const int fd = bench.mover->event_fd();
  REQUIRE(wait_readable({&fd, 1}, kLong));
  Completion done;
  REQUIRE(bench.mover->wait(kLong));
  REQUIRE(bench.mover->poll({&done, 1}) == 1);
  CHECK(done.id == 1);
  // Nothing is left, so nothing keeps the descriptor readable after one more look.
  CHECK(bench.mover->poll({&done, 1}) == 0);
  CHECK_FALSE(wait_readable({&fd, 1}, 0));
}

TEST_CASE("Mover contract: destroying a mover with work in flight is orderly") {
  const Case c = any_mover();
  CAPTURE(static_cast<int>(c.kind), static_cast<int>(c.way));
  Bench bench(c.kind, c.way, 4, 1024);
  std::vector<Job> jobs;
  for (SlotId s = 0; s < kPages; ++s) {
    bench.write_source(s, s);
    jobs.push_back(bench.job(s + 1, s, s));
  }
  REQUIRE(bench.mover->submit(jobs) == jobs.size());
  bench.mover.reset();
  std::memset(bench.memory->memory().data(), 1, bench.memory->memory().size());
}

TEST_CASE("File movers ask again for the rest of a short request") {
  const Kind kind = GENERATE(Kind::kPread, Kind::kUring, Kind::kUringBuffered);
  const Way way = GENERATE(Way::kRead, Way::kWrite);
  const std::uint32_t first = GENERATE(1U, 512U, 4095U, 4096U, 5000U);
  Bench bench(kind, way, 2, 16);
  // O_DIRECT itself refuses a request that is no whole number of sectors.
  if (bench.file->direct() && first % 512 != 0) return;
  CAPTURE(static_cast<int>(kind), static_cast<int>(way), first);
  bench.write_source(0, 5);
  Job job = bench.job(1, 0, 3);
  job.first_bytes = first;
  REQUIRE(bench.mover->submit({&job, 1}) == 1);
  const auto done = bench.finish();
  REQUIRE(done.size() == 1);
  if (first < 4096) {
    // Less than a block more cannot be told from the end of the file: said, not hidden.
    CHECK(done[0].code == Code::kIo);
    CHECK(done[0].reason == Reason::kTruncated);
    CHECK(done[0].bytes == first);
  } else {
    CHECK(done[0].code == Code::kOk);
    CHECK(bench.destination_is(3, 5));
  }
}

TEST_CASE("File movers say that a file ended, and report a bad descriptor") {
  const Kind kind = GENERATE(Kind::kPread, Kind::kUring, Kind::kUringBuffered);
  CAPTURE(static_cast<int>(kind));
  Bench bench(kind, Way::kRead, 2, 16);
  bench.write_source(0, 5);
  REQUIRE(::ftruncate(bench.file->fd(),
                      static_cast<off_t>(bench.file->address(0).offset + kPage / 2)) == 0);
  std::vector<Job> jobs{bench.job(1, 0, 0), bench.job(2, 40, 1), bench.job(3, 0, 2)};
  jobs[2].source.unit = 99999;
  REQUIRE(bench.mover->submit(jobs) == 3);
  std::map<JobId, Completion> seen;
  for (const Completion& done : bench.finish()) seen[done.id] = done;
  CHECK(seen[1].reason == Reason::kTruncated);
  CHECK(seen[1].bytes == kPage / 2);
  CHECK(seen[2].reason == Reason::kTruncated);
  CHECK(seen[2].bytes == 0);
  CHECK(seen[3].code == Code::kIo);
  CHECK(seen[3].os_error == EBADF);
  CHECK(bench.mover->counters().failed == 3);
}

TEST_CASE("The job queue keeps the order of each class") {
  JobQueue queue(4);
  std::vector<Job> jobs(5);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].id = i + 1;
    jobs[i].urgency = i % 2 == 0 ? Urgency::kBackground : Urgency::kUrgent;
  }
  CHECK(queue.push(jobs) == 4);
  std::vector<JobId> order;
  Job job;
  while (queue.pop(job)) order.push_back(job.id);
  CHECK(order == std::vector<JobId>{2, 4, 1, 3});
  CHECK(queue.push(jobs) == 0);  // running ones count
  queue.finish({2, Code::kOk, Reason::kNone, 0, 0});
  CHECK(queue.push(jobs) == 1);
  CHECK(queue.unfinished() == 4);
}

TEST_CASE("Jobs that are alike leave the queue together, urgent ones first") {
  JobQueue queue(100);
  std::vector<Job> jobs(8);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].id = i + 1;
    jobs[i].bytes = i < 5 ? 100 : 200;
    jobs[i].urgency = i == 3 ? Urgency::kUrgent : Urgency::kBackground;
  }
  REQUIRE(queue.push(jobs) == 8);
  std::vector<Job> batch;
  CHECK(queue.next_urgency() == Urgency::kUrgent);
  CHECK(queue.pop_alike(1000, 10, batch) == 1);
  CHECK(batch[0].id == 4);
  CHECK(queue.pop_alike(1000, 10, batch) == 4);  // the next ones are of another size
  CHECK(queue.pop_alike(450, 10, batch) == 2);   // as many as fit
  CHECK(queue.pop_alike(1, 10, batch) == 1);     // one always does
  CHECK(queue.pop_alike(1000, 10, batch) == 0);
  std::vector<JobId> order;
  for (const Job& job : batch) order.push_back(job.id);
  CHECK(order == std::vector<JobId>{4, 1, 2, 3, 5, 6, 7, 8});
  CHECK(queue.unfinished() == 8);
  queue.finish(batch, Code::kOk, Reason::kNone);
  CHECK(queue.unfinished() == 0);
  std::vector<Completion> done(10);
  CHECK(queue.take(done) == 8);
  CHECK(done[7].id == 8);
  CHECK(done[7].bytes == 200);
}

TEST_CASE("A fifo keeps its order through bulk, front and compaction") {
  Fifo<int> fifo;
  std::deque<int> model;
  Rng rng(7);
  int next = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int> more(rng.below(6));
    for (int& x : more) x = next++;
    fifo.push(more);
    model.insert(model.end(), more.begin(), more.end());
    const std::size_t count = std::min<std::size_t>(rng.below(6), model.size());
    fifo.drop(count);
    model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(count));
    if (rng.below(50) == 0) {
      fifo.push_front(-round);
      model.push_front(-round);
    }
    if (rng.below(500) == 0) {
      const auto odd = [](int x) { return x % 2 != 0; };
      fifo.erase_if(odd);
      std::erase_if(model, odd);
    }
    REQUIRE(fifo.size() == model.size());
    if (!model.empty()) {
      REQUIRE(fifo.waiting().front() == model.front());
      REQUIRE(fifo.waiting().back() == model.back());
    }
  }
  CHECK(std::equal(model.begin(), model.end(), fifo.waiting().begin(), fifo.waiting().end()));
}
