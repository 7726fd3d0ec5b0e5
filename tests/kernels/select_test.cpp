// SPDX-License-Identifier: Apache-2.0
#include "kernels/select.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/base/ids.hpp"
#include "kernels/resolve.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

struct Run {
  StepShape shape = shape_of(1, 1, 64, 16, 64);
  std::uint32_t length = 0;
  std::vector<float> scores;
  SelectParams params;
  std::vector<std::uint32_t> selection;
  std::uint32_t count = 0;

  explicit Run(std::vector<float> s) : scores(std::move(s)) {
    shape.sequences = 1;
    length = static_cast<std::uint32_t>(scores.size()) * 16;
    scores.resize(64, 1e30F);  // past the end: must not be chosen
    params.pitch = 64;
  }
  std::vector<std::uint32_t> chosen() {
    selection.assign(64, 0xDEAD);
    params.scores = scores.data();
    params.lengths = &length;
    params.selection = selection.data();
    params.counts = &count;
    REQUIRE(select_reference(shape, params));
    return {selection.begin(), selection.begin() + count};
  }
};

}  // namespace

TEST_CASE("top-k with sinks, recent pages and ties, by hand") {
  Run r({0, 5, 9, 5, 1, 5, 0, 0});
  r.params.by = SelectBy::kCount;
  r.params.count = 5;
  r.params.sinks = 1;
  r.params.recent = 1;
  CHECK(r.chosen() ==
        std::vector<std::uint32_t>{0, 1, 2, 3, 7});  // ties of 5 go to the lower pages
  r.params.count = 0;
  CHECK(r.chosen() == std::vector<std::uint32_t>{0, 7});
  r.params.count = 100;
  CHECK(r.chosen().size() == 8);
  r.params.by = SelectBy::kRatio;
  r.params.ratio = 0.3F;  // ceil(2.4) = 3
  CHECK(r.chosen() == std::vector<std::uint32_t>{0, 2, 7});
  r.params.pitch = 2;
  r.params.ratio = 1.0F;
  CHECK(r.chosen() == std::vector<std::uint32_t>{0, 7});
}

TEST_CASE("a mass target takes the fewest pages that reach it") {
  // Weights 2^s with scale ln 2: 8, 4, 2, 1, 1 of 16.
  Run r({0, 3, 1, 2, 0});
  r.params.by = SelectBy::kMass;
  r.params.scale = 0.69314718F;
  r.params.count = 64;
  r.params.sinks = 0;
  r.params.recent = 1;
  r.params.ratio = 0.74F;
  CHECK(r.chosen() ==
        std::vector<std::uint32_t>{1, 4});  // two pages reach 12/16; the tail takes a place
  r.params.ratio = 0.8F;
  CHECK(r.chosen() == std::vector<std::uint32_t>{1, 3, 4});
  r.params.ratio = 1.0F;
  r.params.count = 2;
  CHECK(r.chosen().size() == 2);
}

TEST_CASE("selection is what sorting by (score, page) says") {
  const auto seed = GENERATE(range(1, 30));
  Rng rng(static_cast<std::uint64_t>(seed));
  const std::uint32_t pages = 1 + rng.below(64);
  std::vector<float> scores(pages);
  for (float& s : scores) s = rng.below(4) == 0 ? 1.0F : gaussian(rng);
  if (pages > 3) scores[3] = std::nanf("");
  if (pages > 5) scores[5] = -std::numeric_limits<float>::infinity();
  Run r(scores);
  r.params.by = SelectBy::kCount;
  r.params.count = rng.below(70);
  r.params.sinks = rng.below(3);
  r.params.recent = rng.below(4);
  const auto got = r.chosen();
  // Brute force: a page is in when it is forced, or fewer than the remaining places go to better
  // ones.
  const std::uint32_t recent = std::max(1U, r.params.recent);
  const auto forced = [&](std::uint32_t p) { return p < r.params.sinks || p + recent >= pages; };
  const auto value = [&](std::uint32_t p) { return std::isnan(scores[p]) ? 1e38F : scores[p]; };
  std::uint32_t always = 0;
  for (std::uint32_t p = 0; p < pages; ++p) always += forced(p) ? 1 : 0;
  const std::uint32_t places = std::max(std::min(r.params.count, pages), always) - always;
  std::vector<std::uint32_t> want;
  for (std::uint32_t p = 0; p < pages; ++p) {
    std::uint32_t better = 0;
    for (std::uint32_t o = 0; o < pages; ++o) {
      if (!forced(o) && (value(o) > value(p) || (value(o) == value(p) && o < p))) ++better;
    }
    if (forced(p) || better < places) want.push_back(p);
  }
  CHECK(got == want);
}

TEST_CASE("empty and one-page sequences") {
  Run none({});
  CHECK(none.chosen().empty());
  Run one({-7});
  CHECK(one.chosen() == std::vector<std::uint32_t>{0});
}

TEST_CASE("a row too short for the forced pages is refused") {
  Run r({1, 2, 3, 4, 5, 6, 7, 8});
  r.params.pitch = 4;
  r.params.sinks = 1;
  r.params.recent = 4;
  r.params.scores = r.scores.data();
  r.params.lengths = &r.length;
  r.params.selection = r.scores.empty() ? nullptr : &r.count;
  r.params.counts = &r.count;
  const Status status = select_reference(r.shape, r.params);
  REQUIRE_FALSE(status);
  CHECK(status.error().reason == Reason::kOutOfRange);
}

TEST_CASE("resolve lists misses, grants slots in order, and carries its place in the ring") {
  Batch b(shape_of(1, 1, 64, 16, 8), {128}, 3);
  b.table[1] |= kEntryOverLink;
  b.table[4] |= kEntryOverLink;
  b.table[6] = kAbsentPage;
  std::uint32_t selection[4] = {1, 3, 4, 6}, counts[1] = {4}, ring[2] = {9, 5}, available = 7;
  std::vector<Miss> misses(2);
  alignas(16) ResolveCounters counters{77, 77, 6, 0};
  std::vector<std::uint64_t> installs(8, 1);
  ResolveParams p;
  p.table = b.table.data();
  p.lengths = b.lengths.data();
  p.selection = selection;
  p.counts = counts;
  p.selection_pitch = 4;
  p.misses = misses.data();
  p.miss_capacity = 2;
  p.counters = &counters;
  p.installs = installs.data();
  p.free_slots = ring;
  p.free_available = &available;
  p.free_capacity = 2;
  p.pool = 0x10000;
  p.slot_pitch = 4096;
  REQUIRE(resolve_reference(b.shape, p));
  CHECK(counters.misses == 3);
  CHECK(counters.absent == 1);
  CHECK(counters.taken == 7);
  CHECK(misses[0].page == 1);
  CHECK(misses[0].slot == 9);  // ring place 6 % 2
  CHECK(misses[1].page == 4);
  CHECK(misses[1].slot == kNoSlot);  // the host has put 7 slots out in all, and 7 are taken
  CHECK(installs[1] == 0x10000 + 9 * 4096);
  CHECK(installs[3] == 0);
  CHECK(installs[4] == 0);
  CHECK(installs[2] == 1);  // not selected: not written
}

TEST_CASE("the exported block table has slots for pages of the pool and the sentinel elsewhere") {
  StepShape s = shape_of(1, 1, 64, 16, 4);
  s.sequences = 1;
  const std::uint32_t length = 40;
  const PageEntry table[4] = {
      make_entry(0x8000 + 3 * 4096, false, DType::kF16), make_entry(0x90000, true, DType::kF16),
      make_entry(0x8000, false, DType::kF16), make_entry(0x8000, false, DType::kF16)};
  std::int32_t blocks[4];
  REQUIRE(export_block_table_reference(s, table, &length, 0x8000, 4096, -1, blocks));
  CHECK(blocks[0] == 3);
  CHECK(blocks[1] == -1);
  CHECK(blocks[2] == 0);
  CHECK(blocks[3] == -1);  // past the end
  CHECK_FALSE(export_block_table_reference(s, table, &length, 0x8000, 100, -1, blocks));
}
