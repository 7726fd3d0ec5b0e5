// SPDX-License-Identifier: Apache-2.0
// Files to memory that they do not reach: through a ring of host memory, and by a plug-in. Memory
// of the host stands for the device's.
#include "transfer/relay.hpp"

#include <cstdlib>
#include <cstring>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "tests/transfer/transfer_world.hpp"
#include "transfer/arena.hpp"
#include "transfer/checksum.hpp"
#include "transfer/cufile.hpp"
#include "transfer/page_file.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

constexpr Bytes kPage = 8192;
constexpr SlotId kPages = 64;

MemoryRegion region(Bytes bytes) {
  HostMemoryConfig config;
  config.bytes = bytes;
  auto made = host_region(config);
  REQUIRE(made);
  return *std::move(made);
}

std::unique_ptr<Mover> file_mover(const PageFile& file) {
  FileMoverConfig config;
  config.files = {file.fd()};
  std::string notice;
  auto made = make_file_mover(config, notice);
  REQUIRE(made);
  return *std::move(made);
}

std::unique_ptr<Mover> copies() {
  auto made = make_host_copy({2, 1024});
  REQUIRE(made);
  return *std::move(made);
}

std::unique_ptr<Mover> with_faults(std::unique_ptr<Mover> inner, FaultInjector& injector,
                                   const Clock& clock) {
  return make_faulty(std::move(inner), injector, clock);
}

std::unique_ptr<Mover> relay_of(std::unique_ptr<Mover> file, std::unique_ptr<Mover> copy,
                                std::uint32_t slots) {
  RelayConfig config;
  config.ring = region(slots * kPage);
  config.slot_bytes = kPage;
  config.file = std::move(file);
  config.copy = std::move(copy);
  config.far = Space::kHostMemory;
  auto made = make_relay(std::move(config));
  REQUIRE(made);
  return *std::move(made);
}

std::unique_ptr<PageFile> open_file(const TemporaryDirectory& directory, bool kept = false) {
  PageFileConfig config;
  config.name = "nvme";
  config.path = kept ? directory.file("kept") : directory.path();
  config.keep = kept;
  config.pages = kPages;
  config.page_bytes = kPage;
  auto opened = PageFile::open(config);
  REQUIRE(opened);
  return *std::move(opened);
}

/// A far memory and a file, with an engine whose only mover between them is given. What the engine
/// knows of the far memory is that the host does not see it.
struct Far {
  TemporaryDirectory directory;
  std::unique_ptr<TransferEngine> engine;
  Arena* memory = nullptr;
  PageFile* file = nullptr;
  SteadyClock clock;
  std::unique_ptr<FaultInjector> injector;

  template <class Make>
  explicit Far(Make&& make, const char* faults = "") {
    auto plan = FaultPlan::parse(faults);
    REQUIRE(plan);
    injector = std::make_unique<FaultInjector>(*plan);
    EngineParts parts;
    ArenaConfig config;
    config.name = "hbm";
    config.pages = kPages;
    config.page_bytes = kPage;
    MemoryRegion far = region(Arena::bytes_for(config));
    far.space = Space::kDeviceMemory;
    far.unit = 0;
    auto arena = Arena::create(config, std::move(far));
    REQUIRE(arena);
    memory = arena->get();
    parts.tiers.push_back(*std::move(arena));
    auto opened = open_file(directory);
    file = opened.get();
    parts.tiers.push_back(std::move(opened));
    parts.movers.push_back(make(*this));
    parts.links = {{"store", 0, 1, {}, {}, {}}, {"load", 1, 0, {}, {}, {}}};
    auto made = TransferEngine::create(std::move(parts));
    if (!made) FAIL(made.error().what);
    engine = *std::move(made);
  }

  std::span<std::byte> bytes(SlotId slot) const { return {memory->address(slot).pointer, kPage}; }
  Place make(PageId page) {
    SlotId slot = kNoSlot;
    REQUIRE(engine->allocate(0, {&slot, 1}));
    fill(bytes(slot), page, 1);
    REQUIRE(engine->stamp({0, slot}, page, 1));
    return {0, slot};
  }
  MoveResult run(const PageMove& move) {
    Submission said;
    engine->submit({&move, 1}, {&said, 1});
    REQUIRE(said.job != 0);
    MoveResult result;
    REQUIRE(engine->wait_some({&result, 1}, kLong) == 1);
    return result;
  }
};

/// A copy mover that believes the stand-in to be a device.
class DeviceCopies final : public Mover {
 public:
  DeviceCopies() : inner_(copies()), traits_(inner_->traits()) {
    traits_.moves[0][1] = traits_.moves[1][0] = true;
  }
  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override { return inner_->probe(); }
  int event_fd() const override { return inner_->event_fd(); }

 private:
  std::size_t do_submit(std::span<const Job> jobs) override { return inner_->submit(jobs); }
  std::size_t do_poll(std::span<Completion> out) override { return inner_->poll(out); }
  std::size_t do_cancel(std::span<const JobId> ids) override { return inner_->cancel(ids); }
  Load load() override { return {}; }
  std::unique_ptr<Mover> inner_;
  MoverTraits traits_;
};

std::unique_ptr<Mover> device_relay(Far& far) {
  RelayConfig config;
  config.ring = region(8 * kPage);
  config.slot_bytes = kPage;
  config.file = with_faults(file_mover(*far.file), *far.injector, far.clock);
  config.copy = std::make_unique<DeviceCopies>();
  auto made = make_relay(std::move(config));
  REQUIRE(made);
  return *std::move(made);
}

CuFileConfig fake_cufile(std::vector<int> files) {
  CuFileConfig config;
  config.library = LEHR_FAKE_CUFILE;
  config.files = std::move(files);
  config.fetch = [](std::byte* to, const std::byte* from, Bytes bytes) -> Status {
    std::memcpy(to, from, bytes);
    return {};
  };
  return config;
}

std::unique_ptr<Mover> by_cufile(Far& far) {
  auto made = make_file_cufile(fake_cufile({far.file->fd()}));
  if (!made) FAIL(made.error().what);
  return *std::move(made);
}

struct Environment {
  explicit Environment(const char* mode) { ::setenv("LEHR_FAKE_CUFILE", mode, 1); }
  ~Environment() { ::unsetenv("LEHR_FAKE_CUFILE"); }
};

}  // namespace

TEST_CASE("Pages go from far memory to a file and back, many at once, and are what they were") {
  const bool plug_in = GENERATE(false, true);
  CAPTURE(plug_in);
  Far far([&](Far& f) { return plug_in ? by_cufile(f) : device_relay(f); });
  std::vector<PageMove> stores, loads;
  std::vector<Submission> said(kPages / 2);
  for (PageId p = 1; p <= kPages / 2; ++p) stores.push_back(move_of(p, far.make(p), {1, kNoSlot}));
  far.engine->submit(stores, said);
  for (const Submission& s : said) REQUIRE(s.job != 0);
  REQUIRE(far.engine->wait_all(kLong));
  std::vector<MoveResult> results(kPages);
  REQUIRE(far.engine->poll(results) == kPages / 2);
  for (std::size_t i = 0; i < said.size(); ++i) {
    CHECK(results[i].code == Code::kOk);
    REQUIRE(far.engine->release(stores[i].from));
    loads.push_back(move_of(stores[i].page, {1, said[i].slot}, {0, kNoSlot}));
  }
  std::memset(far.memory->memory().data(), 0, far.memory->memory().size());
  far.engine->submit(loads, said);
  REQUIRE(far.engine->wait_all(kLong));
  REQUIRE(far.engine->poll(results) == kPages / 2);
  for (std::size_t i = 0; i < said.size(); ++i) {
    CHECK(results[i].code == Code::kOk);
    CHECK(is_filled(far.bytes(results[i].to.slot), results[i].page, 1));
  }
}

TEST_CASE("A page that the drive gives wrong goes no further, and is a miss from then on") {
  const bool checked = GENERATE(true, false);
  CAPTURE(checked);
  Far far(device_relay, "read#1=bitflip");
  const Place hbm = far.make(7);
  const MoveResult stored = far.run(move_of(7, hbm, {1, kNoSlot}));
  REQUIRE(stored.code == Code::kOk);
  const Place to{0, far.make(8).slot};
  if (!checked) {
    // The control: a mover that is not told what to expect passes the wrong page on.
    auto mover = relay_of(file_mover(*far.file), copies(), 4);
    std::vector<std::byte> wrong(kPage), got(kPage, std::byte{9});
    REQUIRE(::pread(far.file->fd(), far.bytes(to.slot).data(), kPage,
                    static_cast<off_t>(far.file->address(stored.to.slot).offset)) == kPage);
    Job job{1,
            far.file->address(stored.to.slot),
            {Space::kHostMemory, -1, got.data(), 0},
            kPage,
            Cause::kOther,
            Urgency::kBackground,
            0};
    REQUIRE(mover->submit({&job, 1}) == 1);
    REQUIRE(mover->drain(kLong));
    CHECK(is_filled(got, 7, 1));
    job.contents = kPage;
    job.checksum = checksum(got) + 1;
    std::memset(got.data(), 9, kPage);
    REQUIRE(mover->submit({&job, 1}) == 1);
    REQUIRE(mover->drain(kLong));
    Completion done[2];
    REQUIRE(mover->poll(done) == 2);
    CHECK(done[1].code == Code::kCorrupt);
    CHECK(got[0] == std::byte{9});  // nothing of it arrived
    return;
  }
  const MoveResult wrong = far.run(move_of(7, stored.to, to));
  CHECK(wrong.code == Code::kCorrupt);
  CHECK(wrong.reason == Reason::kChecksum);
  CHECK(is_filled(far.bytes(to.slot), 8, 1));  // the ring kept it
  CHECK(far.engine->stats().checksum_failures == 1);
  CHECK_FALSE(far.engine->holds(stored.to, 7, 1));
}

TEST_CASE("Failures of either half are told, and nothing that was readable is lost") {
  Far far(device_relay, "write#1=enospc;read#2=eio");
  const Place hbm = far.make(3);
  const MoveResult full = far.run(move_of(3, hbm, {1, kNoSlot}));
  CHECK(full.code == Code::kIo);
  CHECK(full.reason == Reason::kNoSpace);
  CHECK(is_filled(far.bytes(hbm.slot), 3, 1));
  const MoveResult stored = far.run(move_of(3, hbm, {1, kNoSlot}));
  REQUIRE(stored.code == Code::kOk);
  CHECK(far.run(move_of(3, stored.to, {0, kNoSlot})).code == Code::kOk);
  CHECK(far.run(move_of(3, stored.to, {0, kNoSlot})).code == Code::kIo);
  CHECK(far.run(move_of(3, stored.to, {0, kNoSlot})).code == Code::kOk);
}

TEST_CASE("Writes leave half of the ring to loads") {
  TemporaryDirectory directory;
  auto file = open_file(directory);
  Gate gate;
  gate.open = false;  // no write gets past the ring: files stand still
  auto mover = relay_of(make_gated(file_mover(*file), gate), copies(), 4);
  std::vector<std::byte> memory(kPages * kPage);
  const auto at = [&](SlotId s) {
    return Address{Space::kHostMemory, -1, memory.data() + s * kPage, 0};
  };
  std::vector<Job> jobs;
  for (SlotId s = 0; s < 8; ++s) {
    jobs.push_back({s + 1, at(s), file->address(s), kPage, Cause::kOther, Urgency::kBackground, 0});
  }
  REQUIRE(mover->submit(jobs) == 8);
  // A load is taken though all writes wait: once the gate opens it need not wait for them.
  const Job load{99, file->address(20), at(20), kPage, Cause::kOther, Urgency::kUrgent, 0};
  REQUIRE(mover->submit({&load, 1}) == 1);
  gate.open = true;
  REQUIRE(mover->drain(kLong));
  std::vector<Completion> done(16);
  CHECK(mover->poll(done) == 9);
  CHECK(mover->traits().depth == 4);
}

TEST_CASE("A relay whose parts do not meet is refused") {
  TemporaryDirectory directory;
  auto file = open_file(directory);
  const auto refused = [&](RelayConfig config) {
    const auto made = make_relay(std::move(config));
    REQUIRE_FALSE(made);
    CHECK_FALSE(made.error().what.empty());
  };
  const auto good = [&] {
    RelayConfig config;
    config.ring = region(4 * kPage);
    config.slot_bytes = kPage;
    config.file = file_mover(*file);
    config.copy = copies();
    config.far = Space::kHostMemory;
    return config;
  };
  CHECK(make_relay(good()));
  RelayConfig bad = good();
  bad.far = Space::kDeviceMemory;  // no copies there
  refused(std::move(bad));
  bad = good();
  bad.slot_bytes = 4 * kPage;  // one slot
  refused(std::move(bad));
  bad = good();
  std::swap(bad.file, bad.copy);
  refused(std::move(bad));
  bad = good();
  bad.copy = nullptr;
  refused(std::move(bad));
}

TEST_CASE("The plug-in is used where its library is, and says why it is not used elsewhere") {
  CuFileConfig config = fake_cufile({});
  config.library = "no-such-library.so";
  auto none = make_file_cufile(config);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Code::kUnsupported);
  CHECK(none.error().what.find("no-such-library.so") != std::string::npos);
  config.library = "libc.so.6";  // a library without its calls
  none = make_file_cufile(config);
  REQUIRE_FALSE(none);
  CHECK(none.error().what.find("cuFileDriverOpen") != std::string::npos);
  {
    const Environment refusing("refuse");
    none = make_file_cufile(fake_cufile({}));
    REQUIRE_FALSE(none);
    CHECK(none.error().what.find("5001") != std::string::npos);
  }
  const auto compatible = make_file_cufile(fake_cufile({}));
  REQUIRE(compatible);
  CHECK((*compatible)->probe().why.find("compatibility mode") != std::string::npos);
  const Environment direct("direct");
  const auto straight = make_file_cufile(fake_cufile({}));
  REQUIRE(straight);
  CHECK((*straight)->probe().why.empty());
}
