// SPDX-License-Identifier: Apache-2.0
// The tier below host memory alone: what is on its way down, what comes up, what is taken back.
#include "runtime/machines/cuda/below_tier.hpp"

#include <algorithm>
#include <cstdint>

#include <catch2/catch.hpp>

using namespace lehr;
using lehr::runtime::cuda::BelowConfig;
using lehr::runtime::cuda::BelowTier;
using lehr::runtime::cuda::HomeSlots;

namespace {

constexpr std::uint32_t kSlots = 4, kSpare = 8;
constexpr Bytes kPage = 4096;
constexpr std::int64_t kBound = 10'000'000'000;

/// Four slots of host memory with eight spare places, above a file of 16 pages.
struct World {
  explicit World(const char* faults = "") : memory((kSlots + kSpare + 1) * kPage) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    base = memory.data() + ((at + kPage - 1) / kPage * kPage - at);
    BelowConfig config;
    config.home = "host";
    config.name = "nvme";
    config.slots = 16;
    config.page_bytes = kPage;
    config.host = {base, (kSlots + kSpare) * kPage};
    config.options.bound_ns = kBound;
    config.options.faults = *transfer::FaultPlan::parse(faults);
    auto made = BelowTier::create(config, slots);
    REQUIRE(made);
    tier = *std::move(made);
  }
  /// Contents that follow from the page, made by launch 0.
  void fill(std::uint32_t place, PageId page) {
    for (Bytes i = 0; i < kPage; ++i) base[place * kPage + i] = byte_of(page, i);
    slots.fill(place, 0);
  }
  bool holds(std::uint32_t place, PageId page) const {
    for (Bytes i = 0; i < kPage; ++i) {
      if (base[place * kPage + i] != byte_of(page, i)) return false;
    }
    return true;
  }
  /// The place that a page came up to, or where it still lay.
  std::uint32_t up(PageId page, SlotId from, SlotId home) {
    const auto still = tier->stage(page, 1, from, home, 1);
    REQUIRE(still);
    if (*still) return **still;
    tier->need(slots.place(home));
    REQUIRE(tier->submit());
    REQUIRE(tier->wait_for_needed());
    return slots.place(home);
  }
  void down(PageId page, std::uint32_t place, SlotId to) {
    fill(place, page);
    REQUIRE(tier->sink(page, 1, place, to));
  }
  bool settle() { return tier->settle(1, kBound).has_value(); }

  std::vector<std::byte> memory;
  std::byte* base = nullptr;
  HomeSlots slots{kSlots, kSpare};
  std::unique_ptr<BelowTier> tier;

 private:
  static std::byte byte_of(PageId page, Bytes i) { return std::byte((page * 31 + i * 7) % 251); }
};

}  // namespace

TEST_CASE("a page goes down once the launch that makes it has ended, and comes up as it was") {
  World w;
  w.down(7, 0, 3);
  REQUIRE(w.tier->pump(0));
  CHECK(w.slots.in_transfer(0));
  CHECK(w.up(7, 3, 1) == 0);  // where it still lies
  REQUIRE(w.settle());
  CHECK(w.tier->written() == 1);
  CHECK_FALSE(w.slots.in_transfer(0));
  const std::uint32_t place = w.up(7, 3, 2);
  CHECK(place >= kSlots);
  CHECK(w.holds(place, 7));
  CHECK(w.tier->read() == 1);
  CHECK(w.tier->copied() == 1);
}

TEST_CASE("another page than the one on its way down is not taken for it") {
  World w;
  w.down(7, 0, 3);
  for (const auto& [page, version] : {std::pair<PageId, std::uint32_t>{7, 2}, {8, 1}}) {
    const auto staged = w.tier->stage(page, version, 3, 1, 1);
    REQUIRE_FALSE(staged);
    CHECK(staged.error().reason == Reason::kChecksum);
  }
  CHECK(w.tier->stage(7, 1, 3, 1, 1));  // the control
  const auto taken = w.slots.take();
  REQUIRE(taken);
  const BelowTier::Wanted wrong{3, 7, 2, *taken}, right{3, 7, 1, *taken};
  CHECK((*w.tier->fetch({&wrong, 1}))[0] == 0);
  CHECK((*w.tier->fetch({&right, 1}))[0] == 1);
  CHECK(w.holds(*taken, 7));
}

TEST_CASE("of two pages that go down to one slot the later is there, once") {
  World w;
  w.down(7, 0, 3);
  w.down(8, 1, 3);  // 7 is gone before its launch has ended
  CHECK_FALSE(w.slots.in_transfer(0));
  REQUIRE(w.settle());
  CHECK(w.tier->written() == 1);
  CHECK(w.holds(w.up(8, 3, 2), 8));
  // And where the first is under way already.
  World late("write#1=slow:20000");
  late.down(7, 0, 3);
  REQUIRE(late.tier->pump(1));
  late.down(8, 1, 3);
  REQUIRE(late.settle());
  CHECK(late.tier->written() == 2);
  CHECK(late.holds(late.up(8, 3, 2), 8));
  CHECK_FALSE(late.slots.in_transfer(0));
  CHECK_FALSE(late.slots.in_transfer(1));
}

TEST_CASE("a page that could not go down stays in its place, unless nobody wants it") {
  World w("write#1=eio");
  w.down(7, 0, 3);
  CHECK_FALSE(w.settle());
  CHECK(w.slots.in_transfer(0));
  CHECK(*w.tier->stage(7, 1, 3, 1, 1) == 0U);
  CHECK(w.holds(0, 7));
  World gone("write#1=eio");
  gone.down(7, 0, 3);
  (void)gone.settle();
  gone.down(8, 1, 3);
  CHECK_FALSE(gone.slots.in_transfer(0));
  World slow("write#1=slow:20000");
  slow.down(7, 0, 3);
  REQUIRE(slow.tier->pump(1));
  slow.down(8, 1, 3);
  slow.tier->rollback();
  REQUIRE(slow.settle());
  CHECK_FALSE(slow.slots.in_transfer(0));
  CHECK_FALSE(slow.slots.in_transfer(1));
  CHECK(slow.tier->written() == 1);
}

TEST_CASE("a write that cannot even begin is told, and told again") {
  World w;
  w.fill(0, 7);
  REQUIRE(w.tier->sink(7, 0, 0, 3));  // no version
  CHECK_FALSE(w.settle());
  CHECK_FALSE(w.tier->pump(1));
}

TEST_CASE("what was listed is taken back, what was handed over is not") {
  World w;
  w.down(7, 0, 3);
  w.tier->rollback();
  CHECK_FALSE(w.slots.in_transfer(0));
  REQUIRE(w.settle());
  CHECK(w.tier->written() == 0);
  w.down(7, 0, 3);
  REQUIRE(w.tier->wait_for_needed());  // as a launch does
  w.tier->rollback();
  REQUIRE(w.settle());
  CHECK(w.tier->written() == 1);
  REQUIRE(w.tier->stage(7, 1, 3, 1, 1));
  const std::uint32_t place = w.slots.place(1);
  w.tier->need(place);
  CHECK(w.slots.in_transfer(place));
  w.tier->rollback();
  CHECK_FALSE(w.slots.in_transfer(place));
  REQUIRE(w.tier->wait_for_needed());  // nothing is
  REQUIRE(w.settle());
  CHECK(w.tier->read() == 0);
}

TEST_CASE("pages that are wanted at once: those whose bytes are wrong are told apart") {
  World w("read#2=bitflip");
  std::vector<BelowTier::Wanted> wanted;
  for (std::uint32_t i = 0; i < 3; ++i) {
    w.down(20 + i, i, i);
    REQUIRE(w.settle());
    const auto place = w.slots.take();
    REQUIRE(place);
    wanted.push_back({i, 20 + i, 1, *place});
  }
  const auto good = w.tier->fetch(wanted);
  REQUIRE(good);
  CHECK(std::count(good->begin(), good->end(), 1) == 2);
  for (std::uint32_t i = 0; i < 3; ++i)
    CHECK(((*good)[i] == 1) == w.holds(wanted[i].place, 20 + i));
}

TEST_CASE("what a step waits for is read before what is only fetched ahead") {
  World w("read#1=eio");
  for (std::uint32_t i = 0; i < 4; ++i) {
    w.down(20 + i, i, i);
    REQUIRE(w.settle());
  }
  for (std::uint32_t i = 0; i < 4; ++i) REQUIRE(w.tier->stage(20 + i, 1, i, i, 1));
  w.tier->need(w.slots.place(3));
  REQUIRE(w.tier->submit());
  const Status there = w.tier->wait_for_needed();
  REQUIRE_FALSE(there);
  CHECK(there.error().what.find("page 23 ") != std::string::npos);
}
