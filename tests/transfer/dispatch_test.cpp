// SPDX-License-Identifier: Apache-2.0
// An engine that goes by what movers were measured to do, and how much it gives them at once.
#include <catch2/catch.hpp>

#include "tests/transfer/host_arena.hpp"
#include "tests/transfer/transfer_world.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

constexpr Bytes kPage = 4096;
constexpr SlotId kPages = 2048;

/// Notes how many jobs each submission brings.
class Noting final : public Mover {
 public:
  explicit Noting(std::vector<std::size_t>& sizes) : sizes_(sizes) {
    auto made = make_host_copy({1, 1U << 14});
    REQUIRE(made);
    inner_ = *std::move(made);
  }
  const MoverTraits& traits() const override { return inner_->traits(); }
  Probe probe() const override { return inner_->probe(); }
  int event_fd() const override { return inner_->event_fd(); }

 private:
  std::size_t do_submit(std::span<const Job> jobs) override {
    sizes_.push_back(jobs.size());
    return inner_->submit(jobs);
  }
  std::size_t do_poll(std::span<Completion> out) override { return inner_->poll(out); }
  std::size_t do_cancel(std::span<const JobId> ids) override { return inner_->cancel(ids); }
  Load load() override { return {}; }

  std::unique_ptr<Mover> inner_;
  std::vector<std::size_t>& sizes_;
};

/// Two memories, and two movers between them: the first starts soon, the second runs fast; a third
/// curve of the first knows runs of pages.
struct Two {
  std::vector<std::size_t> soon, fast;
  std::unique_ptr<TransferEngine> engine;

  explicit Two(bool measured = true) {
    EngineParts parts;
    parts.tiers.push_back(host_arena("host", kPages, kPage));
    parts.tiers.push_back(host_arena("hbm", kPages, kPage));
    parts.movers.push_back(std::make_unique<Noting>(soon));
    parts.movers.push_back(std::make_unique<Noting>(fast));
    LinkConfig link;
    link.name = "up";
    link.from = 0;
    link.to = 1;
    link.limits.bytes_per_second = 1e15;
    if (measured) {
      link.measured = {{0, {"up", "soon", 1, 1e-6, BandwidthCurve(1e9)}},
                       {1, {"up", "fast", 1, 100e-6, BandwidthCurve(50e9)}},
                       {0, {"up", "soon", 16, 1e-6, BandwidthCurve(55e9)}}};
    }
    parts.links = {link};
    auto made = TransferEngine::create(std::move(parts));
    REQUIRE(made);
    engine = *std::move(made);
  }

  /// Moves `count` pages of which every `step`-th slot is taken.
  void move(SlotId count, SlotId step) {
    std::vector<SlotId> from(kPages), to(kPages);
    REQUIRE(engine->allocate(0, from));
    REQUIRE(engine->allocate(1, to));
    std::vector<PageMove> moves;
    for (SlotId i = 0; i < count; ++i) {
      REQUIRE(engine->stamp({0, from[i * step]}, i + 1, 1));
      moves.push_back(move_of(i + 1, {0, from[i * step]}, {1, to[i * step]}));
    }
    std::vector<Submission> said(count);
    engine->submit(moves, said);
    for (const Submission& s : said) REQUIRE(s.job != 0);
    REQUIRE(engine->wait_all(kLong));
    std::vector<MoveResult> results(count);
    REQUIRE(engine->poll(results) == count);
    for (const MoveResult& r : results) CHECK(r.code == Code::kOk);
  }
};

}  // namespace

TEST_CASE("Few pages go with the mover that starts soonest, many with the fastest") {
  {
    Two two;
    two.move(4, 2);  // 16 KiB: 17 us, or 100
    CHECK(two.soon == std::vector<std::size_t>{4});
    CHECK(two.fast.empty());
  }
  {
    Two two;
    two.move(1000, 2);  // 4 MB: 4 ms, or 0.2
    CHECK(two.soon.empty());
    CHECK(two.fast == std::vector<std::size_t>{1000});
    const LinkStats link = two.engine->stats().links[0];
    REQUIRE(link.by_mover.size() == 3);
    CHECK(link.by_mover[1].jobs == 1000);
    CHECK(link.by_mover[1].bytes == 1000 * kPage);
    CHECK(link.by_mover[0].jobs + link.by_mover[2].jobs == 0);
  }
}

TEST_CASE("Pages that follow each other go with the mover that merges them") {
  Two two;
  two.move(1000, 1);
  CHECK(two.fast.empty());
  CHECK(two.soon == std::vector<std::size_t>{1000});
  CHECK(two.engine->stats().links[0].by_mover[2].jobs == 1000);
}

TEST_CASE("Without measurements the first mover that fits serves, a whole batch at a time") {
  Two two(false);
  two.move(2000, 1);
  CHECK(two.fast.empty());
  CHECK(two.soon == std::vector<std::size_t>{1024, 976});
}

TEST_CASE("A measured mover that does not go between the tiers is refused") {
  EngineParts parts;
  parts.tiers.push_back(host_arena("host", kPages, kPage));
  parts.tiers.push_back(host_arena("hbm", kPages, kPage));
  auto pread = make_file_pread({1, 16});
  REQUIRE(pread);
  parts.movers.push_back(*std::move(pread));
  LinkConfig link;
  link.name = "up";
  link.from = 0;
  link.to = 1;
  link.measured = {{0, {"up", "file_pread", 1, 0, BandwidthCurve(1e9)}}};
  parts.links = {link};
  const auto made = TransferEngine::create(std::move(parts));
  REQUIRE_FALSE(made);
  CHECK(made.error().what.find("up") != std::string::npos);
}

TEST_CASE("A host engine goes by what was measured of the movers that it has") {
  const auto by = [](double pread, double uring) {
    const TemporaryDirectory directory;
    HostEngineConfig config;
    config.page_bytes = kPage;
    config.memory = {{"host", 8, std::nullopt}};
    PageFileConfig file;
    file.name = "nvme";
    file.path = directory.path();
    file.pages = 8;
    config.files = {file};
    config.measured = {
        {0, 1, {"nvme_write", "file_pread", 1, 1e-6, BandwidthCurve(pread)}},
        {0, 1, {"nvme_write", "file_uring", 1, 1e-6, BandwidthCurve(uring)}},
        {0, 1, {"nvme_write", "ring", 1, 0, BandwidthCurve(1e12)}},        // of another machine
        {1, 7, {"elsewhere", "file_pread", 1, 0, BandwidthCurve(1e12)}}};  // no such way
    auto made = make_host_engine(std::move(config));
    REQUIRE(made);
    TransferEngine& engine = **made;
    std::vector<SlotId> from(4), to(4);
    REQUIRE(engine.allocate(0, from));
    REQUIRE(engine.allocate(1, to));
    std::vector<PageMove> moves;
    for (SlotId i = 0; i < 4; ++i) {
      REQUIRE(engine.stamp({0, from[i]}, i + 1, 1));
      moves.push_back(move_of(i + 1, {0, from[i]}, {1, to[i]}));
    }
    std::vector<Submission> said(4);
    engine.submit(moves, said);
    REQUIRE(engine.wait_all(kLong));
    std::string used;
    const LinkStats down = engine.stats().links[0];
    for (const MoverShare& share : down.by_mover) {
      if (share.jobs == 4) used += share.mover;
    }
    return used;
  };
  CHECK(by(2e9, 1e9) == "file_pread");
  if (make_file_uring({})) CHECK(by(1e9, 2e9) == "file_uring");
}
