// SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse_step.hpp"

#include <cstring>
#include <functional>

#include <catch2/catch.hpp>

#include "kernels/boxes.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// A batch and all that one step over it writes.
struct World {
  Batch b;
  std::vector<std::uint16_t> boxes;
  std::vector<std::uint32_t> list, counts;
  std::vector<SoftmaxPair> pairs, totals;
  std::vector<PageHeat> heat;
  std::vector<Miss> misses;
  alignas(16) ResolveCounters counters{7, 7, 0, 0};
  std::uint32_t number = 4;

  World() : b(shape_of(4, 2, 64, 16, 40), {600, 33, 0, 1}, 11) {
    boxes.resize(b.table.size() * 2 * 64);
    BoxesParams p;
    p.table = b.table.data();
    p.lengths = b.lengths.data();
    p.boxes = boxes.data();
    REQUIRE(boxes_reference(b.shape, p));
    // Every third page lies over a link.
    for (std::size_t i = 0; i < b.table.size(); i += 3) {
      if (b.table[i] != kAbsentPage)
        b.table[i] = make_entry(entry_address(b.table[i]), true, b.shape.dtype);
    }
    list.assign(b.table.size(), 0);
    counts.assign(b.shape.groups(), 0);
    pairs.assign(b.table.size() * b.shape.rows(), {0, 0});
    totals.assign(b.shape.groups() * b.shape.rows(), {0, 0});
    heat.assign(b.table.size(), {0, 0, 0, 0});
    misses.resize(b.table.size());
  }

  SparseStep step() {
    SparseStep s;
    s.score.q = b.q.data();
    s.score.boxes = boxes.data();
    s.score.lengths = b.lengths.data();
    s.select.selection = list.data();
    s.select.counts = counts.data();
    s.select.lengths = b.lengths.data();
    s.select.pitch = b.shape.max_pages;
    s.select.ratio = 0.3F;
    s.resolve.table = b.table.data();
    s.resolve.lengths = b.lengths.data();
    s.resolve.selection = list.data();
    s.resolve.counts = counts.data();
    s.resolve.selection_pitch = b.shape.max_pages;
    s.resolve.misses = misses.data();
    s.resolve.counters = &counters;
    s.resolve.miss_capacity = static_cast<std::uint32_t>(misses.size());
    s.attend = b.params();
    s.attend.selection = list.data();
    s.attend.counts = counts.data();
    s.attend.selection_pitch = b.shape.max_pages;
    s.attend.pairs = pairs.data();
    s.attend.totals = totals.data();
    s.feedback.pairs = pairs.data();
    s.feedback.totals = totals.data();
    s.feedback.lengths = b.lengths.data();
    s.feedback.selection = list.data();
    s.feedback.counts = counts.data();
    s.feedback.selection_pitch = b.shape.max_pages;
    s.feedback.step = &number;
    s.feedback.heat = heat.data();
    return s;
  }
};

}  // namespace

TEST_CASE(
    "A sparse step reads what it selected, counts what lies elsewhere, and heats what it read") {
  World w;
  REQUIRE(sparse_step_reference(w.b.shape, w.step()));
  std::uint32_t over_link = 0;
  for (std::size_t g = 0; g < w.counts.size(); ++g) {
    const std::uint32_t pages = w.b.shape.pages_for(w.b.lengths[g / 2]);
    // ceil(0.3 * 38) = 12 of 600 tokens; sink and recent pages alone where there are fewer.
    CHECK(w.counts[g] == (pages == 38 ? 12 : pages));
    for (std::uint32_t p = 0; p < pages; ++p) {
      const std::size_t at = g * 40 + p;
      bool read = false;
      for (std::uint32_t i = 0; i < w.counts[g]; ++i) read = read || w.list[g * 40 + i] == p;
      CHECK(w.heat[at].frequency == (read ? 1.0F : 0.0F));
      over_link += read && entry_over_link(w.b.table[at]) ? 1 : 0;
    }
  }
  CHECK(over_link > 0);
  CHECK(w.counters.misses == over_link);
  // The parts by hand give the same bits.
  World parts;
  const SparseStep s = parts.step();
  REQUIRE(score_select_reference(parts.b.shape, s.score, s.select));
  REQUIRE(attend_reference(parts.b.shape, s.attend));
  CHECK(parts.list == w.list);
  CHECK(parts.b.out == w.b.out);
}

TEST_CASE("Without resolve and feedback a step leaves misses and heat alone") {
  World w;
  SparseStep s = w.step();
  s.resolve = {};
  s.feedback = {};
  REQUIRE(sparse_step_reference(w.b.shape, s));
  CHECK(w.counters.misses == 7);
  CHECK(w.heat[0].frequency == 0.0F);
  CHECK(w.counts[0] == 12);
}

TEST_CASE("Parts of a step that are given different things are refused, and nothing is written") {
  World other;
  const std::vector<std::function<void(SparseStep&)>> wrong{
      [&](SparseStep& s) { s.attend.selection = other.list.data(); },
      [&](SparseStep& s) { s.attend.counts = other.counts.data(); },
      [](SparseStep& s) { s.attend.selection_pitch -= 1; },
      [&](SparseStep& s) { s.attend.q = other.b.q.data(); },
      [&](SparseStep& s) { s.attend.lengths = other.b.lengths.data(); },
      [&](SparseStep& s) { s.resolve.table = other.b.table.data(); },
      [&](SparseStep& s) { s.resolve.selection = other.list.data(); },
      [&](SparseStep& s) { s.feedback.totals = other.totals.data(); },
      [&](SparseStep& s) { s.feedback.counts = other.counts.data(); },
      [](SparseStep& s) { s.score.q = nullptr; },
  };
  for (const auto& change : wrong) {
    World w;
    SparseStep s = w.step();
    change(s);
    const Status refused = sparse_step_reference(w.b.shape, s);
    REQUIRE_FALSE(refused);
    CHECK_FALSE(refused.error().what.empty());
    CHECK(w.counts[0] == 0);
  }
}
