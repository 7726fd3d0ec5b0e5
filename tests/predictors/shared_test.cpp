// SPDX-License-Identifier: Apache-2.0
// Batches whose sequences share pages, sit out steps, leave and come back; and what no predictor
// may know: the future.
#include <bit>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/base/rng.hpp"
#include "predictors/watch.hpp"
#include "tests/predictors/scene.hpp"

namespace lehr::predictors {
namespace {

using test::blocks_from;
using test::Scene;
using test::SceneSequence;

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto* d : models()) out.emplace_back(d->name);
  return out;
}

/// Weights drawn at random know nothing of what reads mean.
std::vector<std::string> untrained() {
  return {"persistence", "ema", "frequency", "markov", "periodic", "neighbour-layer", "table"};
}

TEST_CASE("a shared page is read if any of its sequences reads it") {
  const std::string name = GENERATE(from_range(untrained()));
  CAPTURE(name);
  Scene scene;
  const auto predictor = scene.make(name);
  const std::vector<PageId> shared = blocks_from(0, 40);
  predictor->add_pages(scene.pages(shared), {});
  auto with_tail = [&](PageId tail) {
    auto blocks = shared;
    blocks.push_back(tail);
    return blocks;
  };
  for (std::uint32_t t = 0; t < 40; ++t)
    scene.play(*predictor, t, {{with_tail(100), {0, 3}}, {with_tail(200), {0, 7}}});
  const auto odds = predictor->odds(1);
  for (std::uint32_t l = 0; l < 2; ++l) {
    CHECK(odds[scene.page(3, l)] > 0.7F);
    CHECK(odds[scene.page(7, l)] > 0.7F);  // of the second sequence only
    CHECK(odds[scene.page(20, l)] < 0.2F);
  }
  CHECK(predictor->work().pages == 40U * 2U * 40U);  // each page once a layer
}

TEST_CASE("pages behind a shared prefix are seen, whoever comes first in the batch") {
  const std::string name = GENERATE(from_range(untrained()));
  const bool fork_first = GENERATE(false, true);
  CAPTURE(name, fork_first);
  Scene scene;
  const auto predictor = scene.make(name);
  // The fork left after page 4; the parent's next pages follow in id, too.
  const SceneSequence parent{blocks_from(0, 11), {0, 8}};
  SceneSequence fork{blocks_from(0, 5), {0, 6}};
  for (const PageId p : blocks_from(64, 6)) fork.blocks.push_back(p);
  predictor->add_pages(scene.pages(blocks_from(0, 10)), {});
  predictor->add_pages(scene.pages(blocks_from(64, 5)), {});
  for (std::uint32_t t = 0; t < 40; ++t) {
    scene.play(*predictor, t, fork_first ? std::vector{fork, parent} : std::vector{parent, fork});
  }
  const auto odds = predictor->odds(1);
  CHECK(odds[scene.page(8, 1)] > 0.7F);
  CHECK(odds[scene.page(65, 1)] > 0.7F);  // position 6 of the fork
  CHECK(odds[scene.page(7, 1)] < 0.2F);
  CHECK(predictor->work().pages == 40U * 2U * 15U);
}

/// Layers in which a pause is told, of a hundred steps of `sequences` that share all their pages
/// and read the same.
std::uint32_t pauses_of(std::uint32_t sequences) {
  Scene scene;
  const auto predictor = scene.make("table");
  Watch watch;
  Rng rng(6);
  const std::vector<PageId> shared = blocks_from(0, 200);
  predictor->add_pages(scene.pages(shared), {});
  watch.add_pages(scene.pages(shared));
  std::vector<SceneSequence> batch(sequences, {shared, {}});
  for (std::uint32_t s = 0; s < sequences; ++s) batch[s].blocks.push_back(300 + 100 * s);
  std::uint32_t paused = 0;
  for (std::uint32_t t = 0; t < 100; ++t) {
    std::set<std::uint32_t> reads{0};
    for (std::uint32_t i = 1; i < 100; ++i) {
      if (rng.uniform() < 0.9) reads.insert(i);
    }
    for (SceneSequence& s : batch) s.reads = reads;
    for (std::uint32_t l = 0; l < 2; ++l) {
      const LayerView& view = scene.layer(t, l, batch);
      watch.compare(view, *predictor);
      predictor->observe(view);
      paused += watch.tell(view, *predictor, 3).paused ? 1U : 0U;
    }
  }
  CHECK(watch.trusted());
  return paused;
}

TEST_CASE("pages that a batch shares are held against the odds once") {
  CHECK(pauses_of(1) < 40);
  CHECK(pauses_of(2) == pauses_of(1));
  CHECK(pauses_of(3) == pauses_of(1));
}

TEST_CASE("what was said is held against a step only where it was said") {
  Said said(2);
  said.cover(8);
  for (PageId p = 0; p < 8; ++p) said.forget(p);
  LayerView view;
  GroupView group;
  std::array<float, Run::kLength> x{};
  const auto run = [&](std::uint32_t step, std::uint32_t length) {
    view.step = step;
    return Run{0, 0, length, nullptr, nullptr, &group, &view};
  };
  const auto play = [&](std::uint32_t step, std::uint32_t length, float told) {
    const Run r = run(step, length);
    said.take_part(r);
    x.fill(told);
    said.keep(r, 0, x.data());
    x.fill(told + 1);
    said.keep(r, 1, x.data());
  };
  play(0, 3, 1.5F);
  play(1, 4, 2.5F);  // a page more
  said.take_part(run(2, 4));
  CHECK(said.ago(run(2, 4), 1, 0, x.data()) == 4);
  CHECK(x[3] == 2.5F);
  CHECK(said.ago(run(2, 4), 2, 1, x.data()) == 3);  // the fourth was not there
  CHECK(x[2] == 2.5F);
  CHECK(said.ago(run(2, 4), 3, 0, x.data()) == 0);
  play(2, 4, -1.0F);
  play(5, 4, 3.0F);  // steps 3 and 4 it sat out
  play(6, 4, 0);
  CHECK(said.ago(run(6, 4), 1, 0, x.data()) == 4);
  CHECK(said.ago(run(6, 4), 2, 0, x.data()) == 0);
  CHECK(said.ago(run(6, 4), 4, 0, x.data()) == 0);
  said.forget(1);
  said.take_part(run(7, 4));
  CHECK(said.ago(run(7, 4), 2, 0, x.data()) == 1);  // page 1 is another one since
}

/// A digest of the odds for all steps ahead.
std::uint64_t digest(const Predictor& predictor, const std::vector<PageId>& pages) {
  std::uint64_t d = 0;
  for (std::uint32_t k = 1; k <= 3; ++k) {
    for (const PageId p : pages)
      d = Rng::mix(d ^ std::bit_cast<std::uint32_t>(predictor.odds(k)[p]));
  }
  return d;
}

TEST_CASE("predictors: no odds depend on what comes later", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  const std::vector<PageId> blocks = blocks_from(0, 80);
  // Two worlds alike up to step 20, where they part; the second is told of a future, too.
  std::array<std::vector<std::uint64_t>, 2> said;
  for (std::uint32_t world = 0; world < 2; ++world) {
    Scene scene(3, 2);
    const auto predictor = scene.make(name);
    const auto pages = scene.pages(blocks_from(0, 79));
    predictor->add_pages(pages, {});
    scene.next_use = world;
    for (std::uint32_t t = 0; t < 24; ++t) {
      Rng rng(t < 20 ? t : t + 100 * world);
      std::set<std::uint32_t> reads{0};
      for (std::uint32_t i = 0; i < 12; ++i) reads.insert(rng.below(79));
      scene.play(*predictor, t, {{blocks, reads}});
      said[world].push_back(digest(*predictor, pages));
    }
  }
  for (std::uint32_t t = 0; t < 20; ++t) CHECK(said[0][t] == said[1][t]);
  CHECK(said[0][20] != said[1][20]);  // control: what has come counts
}

TEST_CASE("predictors: pages that left expect nothing, and come back without a past",
          "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  Scene scene;
  const auto predictor = scene.make(name);
  const SceneSequence one{blocks_from(0, 21), {0, 5, 9}};
  const auto pages = scene.pages(blocks_from(0, 20));
  for (std::uint32_t round = 0; round < 300; ++round) {  // sequences come and go on the same pages
    predictor->add_pages(pages, {});
    for (const PageId p : pages) REQUIRE(predictor->odds(1)[p] == 0);
    for (std::uint32_t t = 0; t < 4; ++t) scene.play(*predictor, 4 * round + t, {one});
    predictor->remove_pages(pages);
    for (std::uint32_t k = 1; k <= 3; ++k) {
      for (const PageId p : pages) REQUIRE(predictor->odds(k)[p] == 0);
    }
  }
}

TEST_CASE("predictors: without masses, and with a tail only, odds are odds", "[contract]") {
  const std::string name = GENERATE(from_range(names()));
  CAPTURE(name);
  Scene scene;
  scene.masses = false;
  const auto predictor = scene.make(name);
  const auto pages = scene.pages(blocks_from(0, 5));
  predictor->add_pages(pages, {});
  for (std::uint32_t t = 0; t < 12; ++t) {
    scene.play(*predictor, t, {{blocks_from(0, 6), {0, 2}}, {{500}, {}}});
    for (const PageId p : pages) {
      const float odds = predictor->odds(1)[p];
      REQUIRE((odds >= 0 && odds <= 1));
    }
  }
  scene.play(*predictor, 12, {});  // an empty batch
}

}  // namespace
}  // namespace lehr::predictors
