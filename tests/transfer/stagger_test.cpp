// SPDX-License-Identifier: Apache-2.0
// Engines of several devices whose links share a medium: by a clock of the test, so that the
// schedule decides and not the machine.
#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/transfer/host_arena.hpp"
#include "tests/transfer/transfer_world.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

constexpr Bytes kPage = 4096;
constexpr SlotId kPages = 400;
constexpr double kRate = 1e9;  ///< bytes/s of each link: a page takes 4.096 us

struct Interval {
  std::int64_t from = 0, to = 0;
};

/// A link that takes time by the test's clock, one job after the other.
class Timed final : public Mover {
 public:
  Timed(const Clock& clock, std::vector<Interval>& seen) : clock_(clock), seen_(seen) {
    traits_.name = "timed";
    traits_.moves[0][0] = true;
    traits_.queue = kPages;
  }
  const MoverTraits& traits() const override { return traits_; }
  Probe probe() const override { return {true, {}}; }
  int event_fd() const override { return -1; }

 private:
  std::size_t do_submit(std::span<const Job> jobs) override {
    for (const Job& job : jobs) {
      const std::int64_t from = std::max(clock_.now_ns(), busy_until_);
      busy_until_ = from + static_cast<std::int64_t>(static_cast<double>(job.bytes) * 1e9 / kRate);
      seen_.push_back({from, busy_until_});
      flying_.push_back({job, busy_until_});
    }
    return jobs.size();
  }
  std::size_t do_poll(std::span<Completion> out) override {
    std::size_t count = 0;
    while (count < out.size() && !flying_.empty() && flying_.front().second <= clock_.now_ns()) {
      out[count++] = {flying_.front().first.id, Code::kOk, Reason::kNone,
                      flying_.front().first.bytes, 0};
      flying_.erase(flying_.begin());
    }
    return count;
  }
  std::size_t do_cancel(std::span<const JobId>) override { return 0; }
  Load load() override { return {flying_.size(), 0}; }

  const Clock& clock_;
  std::vector<Interval>& seen_;
  MoverTraits traits_;
  std::int64_t busy_until_ = 0;
  std::vector<std::pair<Job, std::int64_t>> flying_;
};

/// The engine of one of `devices`, with its first pages on their way.
struct Device {
  std::vector<Interval> seen;
  std::unique_ptr<TransferEngine> engine;

  std::vector<SlotId> from = std::vector<SlotId>(kPages), to = std::vector<SlotId>(kPages);

  Device(const Clock& clock, std::uint32_t device, std::uint32_t devices, Urgency urgency,
         SlotId pages = kPages) {
    EngineParts parts;
    parts.tiers.push_back(host_arena("host", kPages, kPage));
    parts.tiers.push_back(host_arena("hbm", kPages, kPage));
    parts.movers.push_back(std::make_unique<Timed>(clock, seen));
    LinkConfig link;
    link.name = "up";
    link.to = 1;
    link.limits.bytes_per_second = kRate;
    link.limits.depth_seconds = 1e-4;
    link.limits.stagger_devices = devices;
    link.limits.stagger_device = device;
    link.limits.stagger_phase = 1e-3;
    parts.links = {link};
    parts.clock = &clock;
    auto made = TransferEngine::create(std::move(parts));
    REQUIRE(made);
    engine = *std::move(made);
    REQUIRE(engine->allocate(0, from));
    REQUIRE(engine->allocate(1, to));
    submit(0, pages, urgency);
  }

  void submit(SlotId first, SlotId end, Urgency urgency) {
    std::vector<PageMove> moves;
    for (SlotId i = first; i < end; ++i) {
      REQUIRE(engine->stamp({0, from[i]}, i + 1, 1));
      moves.push_back(move_of(i + 1, {0, from[i]}, {1, to[i]}));
      moves.back().urgency = urgency;
    }
    std::vector<Submission> said(moves.size());
    engine->submit(moves, said);
  }
};

/// How many pairs of transfers of different devices were on the medium at once.
std::size_t collisions(const std::vector<std::unique_ptr<Device>>& devices) {
  std::size_t count = 0;
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      for (const Interval& x : devices[a]->seen) {
        count += static_cast<std::size_t>(
            std::count_if(devices[b]->seen.begin(), devices[b]->seen.end(),
                          [&](const Interval& y) { return x.from < y.to && y.from < x.to; }));
      }
    }
  }
  return count;
}

struct Ended {
  std::size_t finished = 0, collisions = 0;
};
Ended run(std::uint32_t devices, bool stagger, Urgency urgency) {
  FakeClock clock;
  std::vector<std::unique_ptr<Device>> all;
  for (std::uint32_t d = 0; d < devices; ++d)
    all.push_back(std::make_unique<Device>(clock, d, stagger ? devices : 1, urgency));
  Ended ended;
  std::vector<MoveResult> results(kPages);
  for (int tick = 0; tick < 2000 && ended.finished < devices * kPages; ++tick) {
    clock.advance(7'000);
    for (const auto& device : all) ended.finished += device->engine->poll(results);
  }
  ended.collisions = collisions(all);
  return ended;
}

}  // namespace

TEST_CASE("Background moves of devices that share a medium are never on it at once") {
  for (const std::uint32_t devices : {2U, 3U}) {
    const Ended ended = run(devices, true, Urgency::kBackground);
    CHECK(ended.finished == devices * kPages);
    CHECK(ended.collisions == 0);
  }
}

TEST_CASE("Control: without turns they are") {
  const Ended ended = run(2, false, Urgency::kBackground);
  CHECK(ended.finished == 2 * kPages);
  CHECK(ended.collisions > 0);
}

TEST_CASE("A link's time counts as exposed while a step waits, else as hidden, idle as neither") {
  FakeClock clock;
  clock.advance(1'000'000);
  Device device(clock, 0, 1, Urgency::kBackground, 3);
  clock.advance(5'000);  // the first page took 4096
  std::vector<MoveResult> results(8);
  CHECK(device.engine->poll(results) == 1);
  device.submit(3, 4, Urgency::kUrgent);
  clock.advance(12'000);  // the others of before and the urgent one end at 16384
  CHECK(device.engine->poll(results) == 3);
  clock.advance(50'000);
  CHECK(device.engine->poll(results) == 0);
  device.submit(4, 6, Urgency::kBackground);
  clock.advance(9'000);
  CHECK(device.engine->poll(results) == 2);
  const LinkStats link = device.engine->stats().links[0];
  CHECK(link.exposed_ns == 12'000);
  CHECK(link.hidden_ns == 5'000 + 9'000);
}

TEST_CASE("Turns do not hold back what a step waits for") {
  const Ended ended = run(2, true, Urgency::kUrgent);
  CHECK(ended.finished == 2 * kPages);
  CHECK(ended.collisions > 0);
}
