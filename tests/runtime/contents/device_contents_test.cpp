// SPDX-License-Identifier: Apache-2.0
// Contents on a device, on a stand-in that runs kernels by the reference and its two lanes in any
// order that their marks allow.
#include <cmath>

#include "tests/runtime/contents/device_world.hpp"

using namespace lehr;
using namespace lehr::test;
using contents::ChoiceRule;

namespace {

using Tokens = std::vector<std::uint64_t>;

float at(const contents::Tensor& t, std::size_t b, std::size_t h, std::size_t j, std::size_t c) {
  return from_f16(reinterpret_cast<const std::uint16_t*>(t.row(b, h, j))[c]);
}

/// Attention over a text in float64: the largest distance of query `j` (of the latest `count`).
double distance(const contents::Tensor& out, std::size_t b, const Tokens& text, std::size_t count,
                std::uint32_t layer) {
  double worst = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const std::size_t seen = text.size() - count + j + 1;
    for (std::uint32_t h = 0; h < kQHeads; ++h) {
      const std::uint32_t kv = h / (kQHeads / kHeads);
      std::vector<double> weights;
      double sum = 0;
      for (std::size_t p = 0; p < seen; ++p) {
        double s = 0;
        for (std::uint32_t c = 0; c < kDim; ++c)
          s += static_cast<double>(from_f16(model_value(2, text[seen - 1], layer, h, c))) *
               static_cast<double>(from_f16(model_value(0, text[p], layer, kv, c)));
        weights.push_back(std::exp(s / std::sqrt(double{kDim})));
        sum += weights.back();
      }
      for (std::uint32_t c = 0; c < kDim; ++c) {
        double v = 0;
        for (std::size_t p = 0; p < seen; ++p)
          v += weights[p] / sum *
               static_cast<double>(from_f16(model_value(1, text[p], layer, kv, c)));
        worst = std::max(worst, std::abs(v - static_cast<double>(at(out, b, h, j, c))));
      }
    }
  }
  return worst;
}

bool same_bits(const contents::Tensor& a, const contents::Tensor& b,
               const std::vector<Tokens>& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::uint32_t h = 0; h < kQHeads; ++h) {
      for (std::size_t j = 0; j < tokens[i].size(); ++j) {
        if (std::memcmp(a.row(i, h, j), b.row(i, h, j), kDim * 2) != 0) return false;
      }
    }
  }
  return true;
}

Tokens some_tokens(Rng& random, std::size_t count) {
  Tokens t;
  for (std::size_t i = 0; i < count; ++i) t.push_back(random.next());
  return t;
}

ChoiceRule half_of_the_pages() {
  ChoiceRule rule;
  rule.by = ChoiceRule::By::kRatio;
  rule.amount = 0.5;
  rule.recent = 2;
  return rule;
}

/// The same life in two worlds, all outputs compared bit for bit. Returns how many differed.
std::size_t live(DeviceWorld& a, DeviceWorld& b, std::uint64_t seed, std::uint32_t turns) {
  Rng random(seed);
  std::vector<std::uint32_t> ids;
  std::vector<std::uint32_t> asleep;
  const auto both = [&](auto&& act) {
    act(a);
    act(b);
  };
  std::size_t different = 0;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const std::uint32_t what = random.below(20);
    if (ids.size() < 2 || (what == 0 && ids.size() + asleep.size() < 5)) {
      const std::uint32_t id = a.create();
      REQUIRE(b.create() == id);
      ids.push_back(id);
    } else if (what == 1 && ids.size() + asleep.size() < 5) {
      const std::uint32_t parent = ids[random.below(static_cast<std::uint32_t>(ids.size()))];
      const std::uint32_t id = a.fork(parent);
      REQUIRE(b.fork(parent) == id);
      ids.push_back(id);
    } else if (what == 2 && ids.size() > 2) {
      both([&](DeviceWorld& w) { w.release(ids.back()); });
      ids.pop_back();
    } else if (what == 3 && ids.size() > 2) {
      both([&](DeviceWorld& w) { w.suspend(ids.back()); });
      asleep.push_back(ids.back());
      ids.pop_back();
    } else if (what == 4 && !asleep.empty()) {
      both([&](DeviceWorld& w) { w.resume(asleep.back()); });
      ids.push_back(asleep.back());
      asleep.pop_back();
    } else if (what == 5) {
      const std::uint32_t id = ids[random.below(static_cast<std::uint32_t>(ids.size()))];
      const std::size_t keep = random.below(static_cast<std::uint32_t>(a.text.at(id).size() + 1));
      both([&](DeviceWorld& w) { w.truncate(id, keep); });
    } else if (what == 6) {
      std::vector<std::uint32_t> parents;
      for (std::size_t i = 0; i < ids.size(); ++i)
        parents.push_back(random.below(static_cast<std::uint32_t>(ids.size())));
      both([&](DeviceWorld& w) { w.reorder(ids, parents); });
    } else if (what == 7) {
      std::rotate(ids.begin(), ids.begin() + 1, ids.end());  // other rows of the batch
    }
    const bool chunk = what >= 16;
    std::vector<Tokens> tokens;
    for (std::size_t i = 0; i < ids.size(); ++i)
      tokens.push_back(some_tokens(random, chunk ? random.below(40) : 1));
    const bool alone =
        std::all_of(tokens.begin(), tokens.end(), [](const Tokens& t) { return t.size() == 1; });
    const ChoiceRule rule = alone && random.below(2) == 0 ? half_of_the_pages() : ChoiceRule{};
    const bool apart = random.below(2) == 0;
    if (random.below(12) == 0) {  // given up half way
      both([&](DeviceWorld& w) {
        std::vector<std::uint32_t> counts;
        for (const Tokens& t : tokens) counts.push_back(static_cast<std::uint32_t>(t.size()));
        REQUIRE(w.contents->begin(ids, counts, nullptr));
        const auto most = *std::max_element(counts.begin(), counts.end());
        REQUIRE(w.contents->append(0, w.made(3, 0, kHeads, tokens, most, apart),
                                   w.made(4, 0, kHeads, tokens, most, apart)));
        REQUIRE(w.contents->abandon());
      });
    }
    const auto outs = a.run(ids, tokens, rule, apart);
    const auto others = b.run(ids, tokens, rule, apart);
    if (random.below(4) == 0 || turn + 1 == turns) {
      a.device->finish();
      b.device->finish();
    } else {
      continue;
    }
    for (std::uint32_t l = 0; l < kLayers; ++l)
      different += same_bits(outs[l], others[l], tokens) ? 0 : 1;
  }
  return different;
}

}  // namespace

TEST_CASE("device contents: outputs are those of attention, for chunks and single tokens") {
  DeviceWorld world({.hbm = GENERATE(64U, 4096U)});
  Rng random(5);
  const std::vector<std::uint32_t> ids = {world.create(), world.create()};
  for (const std::size_t n : {37U, 1U, 1U, 9U, 3U, 1U, 70U, 1U}) {
    CAPTURE(n);
    std::vector<Tokens> tokens = {some_tokens(random, n), some_tokens(random, n == 1 ? 1 : n / 2)};
    const auto outs = world.run(ids, tokens, {}, n % 2 == 0);
    world.device->finish();
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      for (std::size_t b = 0; b < ids.size(); ++b)
        CHECK(distance(outs[l], b, world.text.at(ids[b]), tokens[b].size(), l) < 2e-3);
    }
  }
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: the same bits wherever pages live, in any order that marks allow") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 4)));
  const std::string policy = GENERATE("lru", "table", "lfu-importance");
  CAPTURE(seed, policy);
  DeviceWorld all({.seed = seed * 2});
  DeviceWorld few({.hbm = 48, .policy = policy, .seed = seed * 2 + 1, .plan_pages = 40});
  CHECK(live(all, few, seed, 36) == 0);
  CHECK(all.wrong_rows() == 0);
  CHECK(few.wrong_rows() == 0);
  CHECK(few.runtime->validate());
  const auto stats = few.contents->stats();
  REQUIRE(stats);
  CHECK(stats->read_in_place > 0);
  CHECK(stats->moved_pages > 0);
}

TEST_CASE("device contents: lanes that do not wait for each other are found out") {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= 3 && found == 0; ++seed) {
    DeviceWorld all({.seed = seed * 2});
    DeviceWorld few({.hbm = 48, .seed = seed * 2 + 1, .plan_pages = 0, .ignore_waits = true});
    found += live(all, few, seed, 36) + few.wrong_rows();
  }
  CHECK(found > 0);
}

TEST_CASE("device contents: a captured step replays while pages move") {
  const bool sparse = GENERATE(false, true);
  const ChoiceRule rule = sparse ? half_of_the_pages() : ChoiceRule{};
  DeviceWorld eager({.seed = 3});
  DeviceWorld world({.hbm = 40, .seed = 4, .sequences = 2, .tokens = 400});
  Rng random(9);
  const std::vector<std::uint32_t> ids = {world.create(), world.create()};
  for (const std::uint32_t id : ids) REQUIRE(eager.create() == id);
  const std::vector<Tokens> prompt = {some_tokens(random, 100), some_tokens(random, 61)};
  (void)world.run(ids, prompt, {});
  (void)eager.run(ids, prompt, {});
  const std::vector<Tokens> first = {some_tokens(random, 1), some_tokens(random, 1)};
  (void)world.run(ids, first, rule);  // what a capture may not allocate is there after this
  (void)eager.run(ids, first, rule);

  // The captured calls read and write these tensors at every launch.
  std::vector<contents::Tensor> k, v, q, out;
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    k.push_back(DeviceWorld::tensor(world.room(2 * kHeads * kDim), 2, kHeads, 1, false));
    v.push_back(DeviceWorld::tensor(world.room(2 * kHeads * kDim), 2, kHeads, 1, false));
    q.push_back(DeviceWorld::tensor(world.room(2 * kQHeads * kDim), 2, kQHeads, 1, false));
    out.push_back(DeviceWorld::tensor(world.room(2 * kQHeads * kDim), 2, kQHeads, 1, false));
  }
  std::vector<FakeKvDevice::Op> graph;
  for (std::uint32_t step = 0; step < 30; ++step) {
    CAPTURE(step);
    const std::vector<Tokens> tokens = {some_tokens(random, 1), some_tokens(random, 1)};
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      const auto fill = [&](std::uint32_t what, const contents::Tensor& t, std::uint32_t heads) {
        const contents::Tensor from = world.made(what, l, heads, tokens, 1, false);
        std::memcpy(t.data, from.data, 2 * std::size_t{heads} * kDim * 2);
      };
      fill(0, k[l], kHeads);
      fill(1, v[l], kHeads);
      fill(2, q[l], kQHeads);
    }
    world.begin(ids, tokens);
    if (step == 0) {
      world.device->begin_capture();
      CHECK(world.contents->begin(ids, std::vector<std::uint32_t>{1, 1}, nullptr).error().code ==
            Code::kInvalid);
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        REQUIRE(world.contents->append(l, k[l], v[l]));
        contents::AttendCall call;
        call.q = q[l];
        call.out = out[l];
        call.choice = rule;
        REQUIRE(world.contents->attend(l, call));
      }
      graph = world.device->end_capture();
    }
    world.device->replay(graph);
    REQUIRE(world.contents->end());
    const auto outs = eager.run(ids, tokens, rule);
    world.device->finish();
    eager.device->finish();
    for (std::uint32_t l = 0; l < kLayers; ++l) CHECK(same_bits(out[l], outs[l], tokens));
  }
  CHECK(world.wrong_rows() == 0);
  const auto stats = world.contents->stats();
  REQUIRE(stats);
  CHECK(stats->moved_pages > 0);
  CHECK(stats->read_in_place > 0);

  // Without a launch of its own, a batch larger than the captured one is no step.
  const std::uint32_t third = world.create();
  REQUIRE_FALSE(world.contents->begin(std::vector<runtime::SequenceId>{ids[0], ids[1], third},
                                      std::vector<std::uint32_t>{1, 1, 1}, nullptr));
}

TEST_CASE("device contents: what cannot be is refused with a reason, and the step stays usable") {
  DeviceWorld world({.hbm = 24, .host = 30, .sequences = 2, .tokens = 200});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create(), c = world.create();
  const auto begin = [&](std::vector<std::uint32_t> ids, std::vector<std::uint32_t> n) {
    return world.contents->begin(ids, n, nullptr);
  };
  CHECK(begin({a, b, c}, {1, 1, 1}).error().reason == Reason::kOverBudget);  // step.sequences
  CHECK(begin({a}, {201}).error().reason == Reason::kOverBudget);            // step.tokens
  CHECK(begin({a, a}, {1, 1}).error().code == Code::kInvalid);
  CHECK(begin({77}, {1}).error().code == Code::kNotFound);
  CHECK(world.contents->end().error().code == Code::kInvalid);
  CHECK(begin({a, b}, {60, 60}).error().reason == Reason::kNoSpace);  // host is full
  (void)world.run({a}, {some_tokens(random, 60)}, {});
  CHECK(world.wrong_rows() == 0);
  world.begin({a}, {some_tokens(random, 1)});
  CHECK(world.contents->end().error().code == Code::kInvalid);  // no layer, and none captured
  CHECK(world.contents->truncate(a, 3).error().code == Code::kInvalid);
  contents::AttendCall call;
  CHECK(world.contents->attend(0, call).error().reason == Reason::kOutOfRange);  // before append
  REQUIRE(world.contents->abandon());
  world.text.at(a).pop_back();
  CHECK(world.wrong_rows() == 0);
  (void)world.run({a, b}, {some_tokens(random, 1), some_tokens(random, 1)}, {});
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: memory that is not to be had ends the call, not the runtime") {
  DeviceWorld world({.hbm = 64});
  Rng random(3);
  const std::uint32_t a = world.create();
  (void)world.run({a}, {some_tokens(random, 20)}, {});
  world.device->finish();
  const std::uint32_t b = world.create();
  world.device->most_bytes = world.device->bytes();
  const Status begun = world.contents->begin(std::vector<runtime::SequenceId>{a, b},
                                             std::vector<std::uint32_t>{1, 1}, nullptr);
  REQUIRE_FALSE(begun);
  CHECK(begun.error().reason == Reason::kNoSpace);
  world.device->most_bytes = ~0ULL;
  CHECK(world.wrong_rows() == 0);
  (void)world.run({a, b}, {some_tokens(random, 1), some_tokens(random, 1)}, {});
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: offered are 16-bit elements, HBM and a home tier") {
  contents::DeviceContentsOptions options;
  options.contents.geometry = DeviceWorld::geometry();
  options.tier_pages = {16, 16};
  options.home = 1;
  const auto code = [](const contents::DeviceContentsOptions& o) {
    return contents::DeviceContents::create(o, std::make_unique<FakeKvDevice>(1)).error().code;
  };
  CHECK(code(options) == Code::kUnsupported);  // f32
  options.contents.element = contents::Element::kF16;
  REQUIRE(contents::DeviceContents::create(options, std::make_unique<FakeKvDevice>(1)));
  options.tier_pages = {16, 16, 4};
  CHECK(code(options) == Code::kUnsupported);
  options.tier_pages = {16, 16};
  options.contents.geometry.head_dim = 24;
  CHECK(code(options) == Code::kUnsupported);
  options.contents.geometry.head_dim = 64;
  options.contents.rounding = contents::Rounding::kE4m3;
  CHECK(code(options) == Code::kUnsupported);
}
