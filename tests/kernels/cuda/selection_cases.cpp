// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/boxes.hpp"
#include "kernels/score_select.hpp"
#include "tests/kernels/cuda/cases.hpp"

namespace lehr::kernels::test {
/// boxes, score, select, resolve, append, feedback on one batch, each against the reference on the
/// same input.
void sparse_step() {
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const std::uint32_t dim : {64U, 128U, 256U}) {
      for (const std::uint32_t ratio : {1U, 4U, 12U}) {
        if (quick && (dim != 128 || ratio != 4)) continue;
        Batch b(shape_of(2 * ratio, 2, dim, 16, quick ? 64 : 300, dtype),
                {0, 1, 17, 500, quick ? 1024U : 4800U}, 31);
        b.set(2 * (quick ? 64 : 300) * 3 + 4, 0, 3, 7, NAN);
        DeviceBatch d(b);
        const StepShape& s = b.shape;
        const std::size_t pages = b.table.size();
        std::vector<std::uint16_t> boxes(pages * 2 * dim, 0);
        DeviceArray<std::uint16_t> device_boxes(boxes);
        BoxesParams hb, db;
        hb.table = b.table.data();
        hb.lengths = b.lengths.data();
        hb.boxes = boxes.data();
        db.table = d.table.get();
        db.lengths = d.lengths.get();
        db.boxes = device_boxes.get();
        must(boxes_reference(s, hb), "boxes");
        must(boxes_cuda(s, db, nullptr), "boxes");
        const std::size_t different = differing(dtype, device_boxes.fetch(), boxes);
        check(different == 0, described(s) + ": " + std::to_string(different) + " box ends differ");

        for (const float spread : {1.0F, 0.5F}) {
          std::vector<float> scores(pages, -7);
          DeviceArray<float> device_scores(scores);
          ScoreParams hs, ds;
          hs.q = b.q.data();
          hs.boxes = boxes.data();
          hs.lengths = b.lengths.data();
          hs.scores = scores.data();
          ds.q = d.q.get();
          ds.boxes = device_boxes.get();
          ds.lengths = d.lengths.get();
          ds.scores = device_scores.get();
          hs.spread = ds.spread = spread;
          must(score_reference(s, hs), "score");
          must(score_cuda(s, ds, nullptr), "score");
          const auto got = device_scores.fetch();
          double worst = 0;
          std::size_t below = 0;
          for (std::size_t i = 0; i < pages; ++i) {
            if (got[i] == scores[i]) continue;
            worst = std::max(worst, std::fabs(double{got[i]} - double{scores[i]}) /
                                        (1 + std::fabs(double{scores[i]})));
            below += got[i] < scores[i] ? 1 : 0;
          }
          check(worst < (spread == 1.0F         ? 2e-2
                         : dtype == DType::kF16 ? 4e-3
                                                : 3e-2),
                described(s) + ": scores off by " + std::to_string(worst));
          if (spread == 1.0F)
            check(below == 0,
                  described(s) + ": " + std::to_string(below) + " scores below the bound");
          if (spread != 1.0F) continue;
          // The same scores for both: the selection must be equal.
          for (const SelectBy by : {SelectBy::kCount, SelectBy::kRatio, SelectBy::kMass}) {
            for (const float amount : {0.0F, 0.1F, 0.5F, 1.0F}) {
              auto tied = got;
              for (std::size_t i = 0; i < tied.size(); i += 3) tied[i] = std::round(tied[i]);
              device_scores.put(tied);
              SelectParams hp, dp;
              hp.by = by;
              hp.count = by == SelectBy::kCount ? static_cast<std::uint32_t>(amount * 200) : 100000;
              hp.ratio = amount;
              hp.pitch = s.max_pages;
              hp.sinks = 2;
              hp.recent = 3;
              hp.lengths = b.lengths.data();
              dp = hp;
              std::vector<std::uint32_t> list(pages, 7), counts(s.groups(), 9);
              DeviceArray<std::uint32_t> device_list(list), device_counts(counts);
              hp.scores = tied.data();
              hp.selection = list.data();
              hp.counts = counts.data();
              dp.scores = device_scores.get();
              dp.lengths = d.lengths.get();
              dp.selection = device_list.get();
              dp.counts = device_counts.get();
              must(select_reference(s, hp), "select");
              must(select_cuda(s, dp, nullptr), "select");
              const auto got_counts = device_counts.fetch();
              if (by == SelectBy::kMass) {  // a sum at the very edge may round the other way
                for (std::size_t g = 0; g < counts.size(); ++g) {
                  check(
                      std::abs(static_cast<int>(got_counts[g]) - static_cast<int>(counts[g])) <= 1,
                      described(s) + ": mass target takes " + std::to_string(got_counts[g]) +
                          " pages for " + std::to_string(counts[g]));
                }
              } else {
                check(got_counts == counts && device_list.fetch() == list,
                      described(s) + ": selection differs, amount " + std::to_string(amount));
              }
            }
          }
        }
      }
    }
  }
}

/// score and select in one launch against the two references, for one CTA a group and for clusters,
/// at one level and over the blocks that a first level chose.
void fused_selection() {
  struct Case {
    std::uint32_t sequences, pages, dim, ratio;
    DType dtype;
  };
  const Case cases[] = {{2, 300, 128, 4, DType::kF16},
                        {2, 64, 64, 1, DType::kBf16},
                        {1, 1100, 128, 4, DType::kBf16},
                        {1, 700, 256, 12, DType::kF16},
                        {1, 20000, 64, 4, DType::kF16}};
  for (const Case& c : cases) {
    if (quick && c.pages > 1100) continue;
    StepShape s = shape_of(2 * c.ratio, 2, c.dim, 16, c.pages, c.dtype);
    s.sequences = c.sequences;
    Rng rng(c.pages);
    std::vector<std::uint32_t> lengths = {c.pages * 16 - 5, 33};
    lengths.resize(c.sequences);
    std::vector<std::uint16_t> q(std::size_t{s.sequences} * s.q_heads * c.dim),
        boxes(s.groups() * c.pages * 2 * c.dim);
    for (auto& x : q) x = store_16(c.dtype, gaussian(rng));
    for (std::size_t box = 0; box < boxes.size(); box += 2 * c.dim) {
      for (std::uint32_t i = 0; i < c.dim; ++i) {
        const float middle = gaussian(rng), half = static_cast<float>(rng.uniform());
        boxes[box + i] = store_16(c.dtype, middle - half);
        boxes[box + c.dim + i] = store_16(c.dtype, middle + half);
      }
    }
    DeviceArray<std::uint16_t> dq(q), dboxes(boxes);
    DeviceArray<std::uint32_t> dl(lengths);

    CoarseParams hc, dc;
    hc.boxes = boxes.data();
    hc.lengths = lengths.data();
    const std::uint32_t blocks = hc.blocks(s);
    std::vector<std::uint16_t> coarse(s.groups() * blocks * 2 * c.dim, 0);
    std::vector<std::uint32_t> coarse_lengths(s.sequences);
    DeviceArray<std::uint16_t> dcoarse(coarse);
    DeviceArray<std::uint32_t> dcl(coarse_lengths);
    hc.coarse = coarse.data();
    hc.coarse_lengths = coarse_lengths.data();
    dc = hc;
    dc.boxes = dboxes.get();
    dc.lengths = dl.get();
    dc.coarse = dcoarse.get();
    dc.coarse_lengths = dcl.get();
    must(coarse_reference(s, hc), "coarse");
    must(coarse_cuda(s, dc, nullptr), "coarse");
    check(dcoarse.fetch() == coarse && dcl.fetch() == coarse_lengths, "coarse boxes differ");
    StepShape level = s;
    level.max_pages = blocks;
    ScoreParams over;
    over.q = dq.get();
    over.boxes = dcoarse.get();
    over.lengths = dcl.get();
    SelectParams of_blocks;
    std::vector<std::uint32_t> block_list(s.groups() * blocks, 7), block_counts(s.groups(), 7);
    DeviceArray<std::uint32_t> dblocks(block_list), dblock_counts(block_counts);
    of_blocks.selection = dblocks.get();
    of_blocks.counts = dblock_counts.get();
    of_blocks.pitch = blocks;
    of_blocks.recent = 1;
    of_blocks.ratio = 0.4F;
    must(score_select_cuda(level, over, of_blocks, nullptr), "blocks");
    block_list = dblocks.fetch();
    block_counts = dblock_counts.fetch();

    for (const bool two_levels : {false, true}) {
      for (const SelectBy by : {SelectBy::kCount, SelectBy::kRatio, SelectBy::kMass}) {
        for (const float amount : {0.05F, 0.3F, 0.9F}) {
          std::vector<float> scores(s.groups() * c.pages, -7);
          DeviceArray<float> ds(scores);
          std::vector<std::uint32_t> list(s.groups() * c.pages, 7), counts(s.groups(), 9);
          DeviceArray<std::uint32_t> dlist(list), dcounts(counts), again(list),
              again_counts(counts);
          ScoreParams score;
          score.q = dq.get();
          score.boxes = dboxes.get();
          score.lengths = dl.get();
          score.scores = ds.get();
          if (two_levels) {
            score.blocks = dblocks.get();
            score.block_counts = dblock_counts.get();
            score.block_pages = 16;
            score.block_pitch = blocks;
          }
          SelectParams select;
          select.by = by;
          select.count = by == SelectBy::kCount ? static_cast<std::uint32_t>(amount * 200) : 100000;
          select.ratio = amount;
          select.pitch = c.pages;
          select.selection = dlist.get();
          select.counts = dcounts.get();
          must(score_select_cuda(s, score, select, nullptr), "score and select");
          const auto got = ds.fetch();
          ScoreParams hs = score;
          hs.q = q.data();
          hs.boxes = boxes.data();
          hs.lengths = lengths.data();
          hs.scores = scores.data();
          hs.blocks = two_levels ? block_list.data() : nullptr;
          hs.block_counts = two_levels ? block_counts.data() : nullptr;
          must(score_reference(s, hs), "score");
          double worst = 0;
          bool bound = true;
          for (std::size_t i = 0; i < scores.size(); ++i) {
            if (got[i] == scores[i]) continue;
            worst = std::max(worst, std::fabs(double{got[i]} - double{scores[i]}) /
                                        (1 + std::fabs(double{scores[i]})));
            bound = bound && got[i] >= scores[i];
          }
          check(worst < 2e-2 && bound,
                described(s) + ": fused scores off by " + std::to_string(worst));
          // The same scores for both: the selection must be equal.
          SelectParams hp = select;
          hp.scores = got.data();
          hp.lengths = lengths.data();
          hp.selection = list.data();
          hp.counts = counts.data();
          must(select_reference(s, hp), "select");
          const auto got_counts = dcounts.fetch();
          if (by == SelectBy::kMass) {  // a sum at the very edge may round the other way
            for (std::size_t g = 0; g < counts.size(); ++g) {
              check(std::abs(static_cast<int>(got_counts[g]) - static_cast<int>(counts[g])) <= 1,
                    described(s) + ": fused mass target takes " + std::to_string(got_counts[g]) +
                        " pages for " + std::to_string(counts[g]));
            }
          } else {
            check(got_counts == counts && dlist.fetch() == list,
                  described(s) + ": fused selection differs, amount " + std::to_string(amount));
          }
          // Without the scores in memory, and as two launches: the same lists.
          score.scores = nullptr;
          select.selection = again.get();
          select.counts = again_counts.get();
          must(score_select_cuda(s, score, select, nullptr), "without scores");
          check(again_counts.fetch() == got_counts && again.fetch() == dlist.fetch(),
                "the list depends on whether scores are written");
          select.scores = ds.get();
          select.lengths = dl.get();
          must(select_cuda(s, select, nullptr), "select alone");
          check(again_counts.fetch() == got_counts && again.fetch() == dlist.fetch(),
                "two launches give another list");
        }
      }
    }
  }
}

void long_selection() {
  if (quick) return;
  StepShape s = shape_of(1, 1, 64, 16, 65536);
  s.sequences = 2;
  const std::vector<std::uint32_t> lengths = {65536 * 16, 40000 * 16 - 3};
  Rng rng(3);
  std::vector<float> scores(2 * 65536);
  for (float& x : scores) x = rng.below(5) == 0 ? 0.5F : gaussian(rng);
  std::vector<std::uint32_t> list(2 * 65536, 7), counts(2);
  DeviceArray<float> ds(scores);
  DeviceArray<std::uint32_t> dl(list), dc(counts), dn(lengths);
  SelectParams hp;
  hp.ratio = 0.1F;
  hp.pitch = 65536;
  hp.scores = scores.data();
  hp.lengths = lengths.data();
  hp.selection = list.data();
  hp.counts = counts.data();
  SelectParams dp = hp;
  dp.scores = ds.get();
  dp.lengths = dn.get();
  dp.selection = dl.get();
  dp.counts = dc.get();
  must(select_reference(s, hp), "select");
  must(select_cuda(s, dp, nullptr), "select");
  check(dc.fetch() == counts && dl.fetch() == list, "a million tokens: selection differs");
}

}  // namespace lehr::kernels::test
