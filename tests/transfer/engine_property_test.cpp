// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <map>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "tests/transfer/transfer_world.hpp"
#include "transfer/page_file.hpp"

using namespace lehr;
using namespace lehr::transfer;
using namespace lehr::transfer::test;

namespace {

constexpr PageId kPages = 24;

/// The naive truth beside an engine: which version each page has, and where its copies are.
struct Model {
  World& world;
  Rng rng;
  std::array<std::uint32_t, kPages> version{};
  std::array<std::map<TierId, Place>, kPages> copies;
  std::size_t moved = 0, refused = 0;

  PageId any_page() { return rng.below(kPages); }

  void drop(PageId page, TierId tier) {
    const auto found = copies[page].find(tier);
    if (found == copies[page].end()) return;
    REQUIRE(world.engine().release(found->second));
    copies[page].erase(found);
  }

  /// A new version, written in one of the memory tiers; older copies are gone.
  void write(PageId page) {
    while (!copies[page].empty()) drop(page, copies[page].begin()->first);
    const TierId tier = rng.below(2) == 0 ? kHbm : kHost;
    SlotId slot = kNoSlot;
    while (!world.engine().allocate(tier, {&slot, 1})) drop(any_page(), tier);
    const Place place{tier, slot};
    auto lease = world.engine().lease(place, LeaseMode::kWrite);
    REQUIRE(lease);
    fill(world.bytes(place), page, ++version[page]);
    REQUIRE(world.engine().stamp(place, page, version[page]));
    copies[page][tier] = place;
  }

  void move_some() {
    std::vector<PageMove> moves;
    std::vector<bool> chosen(kPages, false);
    for (std::uint32_t i = 0, n = 1 + rng.below(8); i < n; ++i) {
      const PageId page = any_page();
      if (copies[page].empty() || chosen[page]) continue;
      chosen[page] = true;
      auto from = copies[page].begin();
      std::advance(from, rng.below(static_cast<std::uint32_t>(copies[page].size())));
      const TierId to = from->first == kHost ? (rng.below(2) == 0 ? kHbm : kNvme) : kHost;
      if (copies[page].count(to) != 0) continue;
      PageMove move = move_of(page, from->second, {to, kNoSlot}, version[page]);
      move.urgency = rng.below(2) == 0 ? Urgency::kUrgent : Urgency::kBackground;
      moves.push_back(move);
    }
    std::vector<Submission> out(moves.size());
    const Ticket ticket = world.engine().submit(moves, out, rng.below(4) == 0);
    // The source may be dropped while it is being read.
    for (std::size_t i = 0; i < moves.size(); ++i) {
      if (out[i].job != 0 && rng.below(4) == 0) drop(moves[i].page, moves[i].from.tier);
      refused += out[i].job == 0;
    }
    REQUIRE(world.engine().wait(ticket, kLong));
    MoveResult r;
    while (world.engine().poll({&r, 1}) == 1) {
      REQUIRE(r.code == Code::kOk);
      copies[r.page][r.to.tier] = r.to;
      ++moved;
    }
    for (std::size_t i = 0; i < moves.size(); ++i) {
      if (out[i].job == 0) drop(any_page(), moves[i].to.tier);
    }
  }

  void verify() {
    std::array<SlotId, 3> held{};
    for (PageId page = 0; page < kPages; ++page) {
      for (const auto& [tier, place] : copies[page]) {
        ++held[tier];
        REQUIRE(world.engine().holds(place, page, version[page]));
        if (tier != kNvme) REQUIRE(is_filled(world.bytes(place), page, version[page]));
      }
    }
    for (TierId t = 0; t < 3; ++t) {
      REQUIRE(world.engine().tier(t).slots().usage().held == held[t]);
      REQUIRE(world.engine().tier(t).slots().usage().leases == 0);
    }
    world.validate();
  }
};

}  // namespace

TEST_CASE("Random moves keep every page whole and every slot counted") {
  const char* const named = std::getenv("LEHR_TEST_SEED");
  const std::uint64_t given = named != nullptr ? std::strtoull(named, nullptr, 10) : 0;
  const std::uint64_t seed = given != 0 ? given : GENERATE(1U, 2U, 3U, 4U);
  CAPTURE(seed);
  WorldConfig config;
  config.use_uring = seed % 2 == 0;
  config.nvme = 20;
  config.page_bytes = seed % 3 == 0 ? 5000 : 4096;
  World world(config);
  Model model{world, Rng(seed), {}, {}, 0, 0};
  for (int step = 0; step < 4000; ++step) {
    switch (model.rng.below(8)) {
      case 0:
        model.write(model.any_page());
        break;
      case 1:
        model.drop(model.any_page(), static_cast<TierId>(model.rng.below(3)));
        break;
      default:
        model.move_some();
    }
    if (step % 10 == 0) model.verify();
  }
  model.verify();
  CHECK(model.moved > 500);
  CHECK(model.refused > 0);
  // Everything that is only on the file comes back, too.
  for (PageId page = 0; page < kPages; ++page) {
    if (model.copies[page].count(kNvme) == 0) continue;
    model.drop(page, kHost);
    for (PageId other = 0; other < kPages; ++other) model.drop(other, kHost);
    const MoveResult r =
        world.run(move_of(page, model.copies[page][kNvme], {kHost, kNoSlot}, model.version[page]));
    REQUIRE(r.code == Code::kOk);
    CHECK(world.intact(r.to, page, model.version[page]));
    REQUIRE(world.engine().release(r.to));
  }
}

TEST_CASE("A restart finds the pages that were stored, and only those") {
  TemporaryDirectory directory;
  WorldConfig config;
  config.kept_file = directory.file("pages");
  std::map<PageId, SlotId> stored;
  {
    World world(config);
    for (PageId p = 0; p < 12; ++p) {
      const Place host = world.make(kHost, p, p + 1);
      PageMove move = move_of(p, host, {kNvme, kNoSlot}, p + 1);
      move.key = {p, 1000 + p};
      const MoveResult r = world.run(move);
      REQUIRE(r.code == Code::kOk);
      stored[p] = r.to.slot;
      REQUIRE(world.engine().release(host));
      if (p % 3 == 0) {
        REQUIRE(world.engine().release(r.to));
        stored.erase(p);
      }
    }
    REQUIRE(world.engine().shutdown(kLong));
  }
  World world(config);
  const auto found = world.engine().contents(kNvme);
  CHECK(found.size() == stored.size());
  for (const FoundPage& page : found) {
    CAPTURE(page.page);
    REQUIRE(stored.count(page.page) == 1);
    CHECK(stored[page.page] == page.slot);
    CHECK(page.version == page.page + 1);
    CHECK(page.key == PageKey{page.page, 1000 + page.page});
    PageMove move = move_of(page.page, {kNvme, page.slot}, {kHost, kNoSlot}, page.version);
    // Under another name it is a miss.
    CHECK(world.run(move).reason == Reason::kGeneration);
    move.key = page.key;
    const MoveResult r = world.run(move);
    REQUIRE(r.code == Code::kOk);
    CHECK(world.intact(r.to, page.page, page.version));
    REQUIRE(world.engine().release(r.to));
  }
}
