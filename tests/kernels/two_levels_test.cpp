// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "kernels/boxes.hpp"
#include "kernels/score_select.hpp"
#include "tests/kernels/batch.hpp"

using namespace lehr;
using namespace lehr::kernels;
using namespace lehr::kernels::test;

namespace {

/// A batch with boxes over its pages and over blocks of 16 of them.
struct Levels {
  Batch b;
  std::vector<std::uint16_t> boxes, coarse;
  std::vector<std::uint32_t> coarse_lengths;
  std::vector<float> scores;
  StepShape level;

  Levels() : b(shape_of(4, 2, 64, 16, 100), {1600, 530, 0}, 3), level(b.shape) {
    boxes.resize(b.table.size() * 2 * 64);
    BoxesParams p;
    p.table = b.table.data();
    p.lengths = b.lengths.data();
    p.boxes = boxes.data();
    REQUIRE(boxes_reference(b.shape, p));
    CoarseParams c;
    level.max_pages = c.blocks(b.shape);
    REQUIRE(level.max_pages == 7);
    coarse.resize(level.groups() * level.max_pages * 2 * 64);
    coarse_lengths.resize(3);
    c.boxes = boxes.data();
    c.lengths = b.lengths.data();
    c.coarse = coarse.data();
    c.coarse_lengths = coarse_lengths.data();
    REQUIRE(coarse_reference(b.shape, c));
    scores.assign(b.table.size(), -7);
  }
  ScoreParams over_pages() {
    ScoreParams p;
    p.q = b.q.data();
    p.boxes = boxes.data();
    p.lengths = b.lengths.data();
    p.scores = scores.data();
    return p;
  }
  ScoreParams over_blocks(std::vector<float>& out) {
    out.assign(level.groups() * level.max_pages, -7);
    ScoreParams p;
    p.q = b.q.data();
    p.boxes = coarse.data();
    p.lengths = coarse_lengths.data();
    p.scores = out.data();
    return p;
  }
};

}  // namespace

TEST_CASE("a block's bound holds for each of its pages", "[score]") {
  Levels x;
  CHECK(x.coarse_lengths == std::vector<std::uint32_t>{7 * 16, 3 * 16, 0});
  std::vector<float> of_blocks;
  REQUIRE(score_reference(x.level, x.over_blocks(of_blocks)));
  REQUIRE(score_reference(x.b.shape, x.over_pages()));
  std::size_t seen = 0;
  for (std::size_t at = 0; at < x.scores.size(); ++at) {
    const std::size_t group = at / 100, page = at % 100;
    if (page >= x.b.shape.pages_for(x.b.lengths[group / 2])) continue;
    ++seen;
    REQUIRE(of_blocks[group * 7 + page / 16] >= x.scores[at]);
  }
  CHECK(seen == 2 * (100 + 34));
}

TEST_CASE("pages outside the listed blocks are passed over", "[score]") {
  Levels x;
  REQUIRE(score_reference(x.b.shape, x.over_pages()));
  const std::vector<float> all = x.scores;
  const std::vector<std::uint32_t> blocks = {0, 3, 6, 1, 6, 9, 0, 2, 9, 2, 9, 9, 9, 9, 9, 9, 9, 9};
  const std::vector<std::uint32_t> counts = {3, 2, 2, 1, 0, 0};
  ScoreParams p = x.over_pages();
  p.blocks = blocks.data();
  p.block_counts = counts.data();
  p.block_pages = 16;
  p.block_pitch = 3;
  REQUIRE(score_reference(x.b.shape, p));
  for (std::size_t at = 0; at < all.size(); ++at) {
    const std::size_t group = at / 100, page = at % 100;
    if (page >= x.b.shape.pages_for(x.b.lengths[group / 2])) continue;
    const auto* list = blocks.data() + group * 3;
    const bool listed = std::find(list, list + counts[group], page / 16) != list + counts[group];
    REQUIRE(x.scores[at] == (listed ? all[at] : -INFINITY));
  }
}

TEST_CASE("score and select in one call is score, then select", "[select]") {
  Levels x;
  std::vector<std::uint32_t> list(x.b.table.size(), 7), counts(6, 9), one_list(list), one(counts);
  SelectParams s;
  s.ratio = 0.25F;
  s.pitch = 100;
  s.scores = x.scores.data();
  s.lengths = x.b.lengths.data();
  s.selection = list.data();
  s.counts = counts.data();
  REQUIRE(score_reference(x.b.shape, x.over_pages()));
  REQUIRE(select_reference(x.b.shape, s));
  SelectParams fused = s;
  fused.scores = nullptr;
  fused.lengths = nullptr;
  fused.selection = one_list.data();
  fused.counts = one.data();
  for (const bool written : {true, false}) {
    ScoreParams p = x.over_pages();
    if (!written) p.scores = nullptr;
    std::fill(one_list.begin(), one_list.end(), 7U);
    REQUIRE(score_select_reference(x.b.shape, p, fused));
    CHECK(one == counts);
    CHECK(one_list == list);
  }
}

TEST_CASE("two levels refuse what they do not offer", "[score]") {
  Levels x;
  ScoreParams p = x.over_pages();
  const std::uint32_t list[8] = {}, counts[6] = {};
  p.blocks = list;
  CHECK_FALSE(check_score(x.b.shape, p));  // without counts
  p.block_counts = counts;
  p.block_pitch = 1;
  for (const std::uint32_t pages : {0U, 8U, 24U, 512U}) {
    p.block_pages = pages;
    CHECK_FALSE(check_score(x.b.shape, p));
  }
  p.block_pages = 64;
  CHECK(check_score(x.b.shape, p));
  p.block_pitch = 0;
  CHECK_FALSE(check_score(x.b.shape, p));
  CoarseParams c;
  c.block_pages = 15;
  CHECK_FALSE(check_coarse(x.b.shape, c));
  SelectParams s;
  s.pitch = 100;
  s.selection = const_cast<std::uint32_t*>(list);
  s.counts = const_cast<std::uint32_t*>(counts);
  CHECK(check_score_select(x.b.shape, x.over_pages(), s));
  s.pitch = 0;
  CHECK_FALSE(check_score_select(x.b.shape, x.over_pages(), s));
}
