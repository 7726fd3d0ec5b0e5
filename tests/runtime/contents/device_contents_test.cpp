// SPDX-License-Identifier: Apache-2.0
// Contents on a device, on a stand-in that runs kernels by the reference and its two lanes in any
// order that their marks allow.
#include "tests/runtime/contents/device_life.hpp"

using namespace lehr;
using namespace lehr::test;
using contents::ChoiceRule;

TEST_CASE("device contents: outputs are those of attention, for chunks and single tokens") {
  DeviceWorld world({.hbm = GENERATE(64U, 4096U)});
  Rng random(5);
  const std::vector<std::uint32_t> ids = {world.create(), world.create()};
  for (const std::size_t n : {37U, 1U, 1U, 9U, 3U, 1U, 70U, 1U}) {
    CAPTURE(n);
    std::vector<Tokens> tokens = {some_tokens(random, n), some_tokens(random, n == 1 ? 1 : n / 2)};
    const auto outs = world.run(ids, tokens, {}, n % 2 == 0);
    world.finish();
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      for (std::size_t b = 0; b < ids.size(); ++b)
        CHECK(distance(outs[l], b, world.text.at(ids[b]), tokens[b].size(), l) < 2e-3);
    }
  }
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: the same bits wherever pages live, in any order that marks allow") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 3)));
  const std::string policy = GENERATE("lru", "table", "lfu-importance");
  CAPTURE(seed, policy);
  DeviceWorld all({.seed = seed * 2});
  DeviceWorld few({.hbm = 48, .policy = policy, .seed = seed * 2 + 1, .plan_pages = 40});
  CHECK(live(all, few, seed, policy == "lru" ? 120 : 36) == 0);
  CHECK(all.wrong_rows() == 0);
  CHECK(few.wrong_rows() == 0);
  CHECK(few.runtime->validate());
  const auto stats = few.contents->stats();
  REQUIRE(stats);
  CHECK(stats->read_in_place > 0);
  CHECK(stats->moved_pages > 0);
}

TEST_CASE("device contents: the same bits where most pages lie in a file meanwhile") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 3)));
  const std::string policy = GENERATE("lru", "table");
  CAPTURE(seed, policy);
  DeviceWorld all({.seed = seed * 2});
  // Room at home for one long sequence or two; up to five live.
  DeviceWorld few({.hbm = 48, .host = 110, .nvme = 2000, .policy = policy, .seed = seed * 2 + 1});
  CHECK(Turns(all, few, seed).take(policy == "lru" ? 80 : 40) == 0);
  CHECK(all.wrong_rows() == 0);
  CHECK(few.wrong_rows() == 0);
  CHECK(few.runtime->validate());
  CHECK(few.runtime->totals().link[2].count > 50);  // came up
  CHECK(few.runtime->totals().link[3].count > 50);  // went down
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
    world.finish();
    eager.finish();
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

TEST_CASE("device contents: a page that waited for room is read at home only once it is there") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 31)));
  CAPTURE(seed);
  DeviceWorld world({.hbm = 14, .host = 12, .seed = seed});
  Rng random(seed);
  const std::uint32_t a = world.create(), b = world.create();
  (void)world.run({a}, {some_tokens(random, 32)}, {});  // two pages of six groups: home is full
  (void)world.run({b}, {some_tokens(random, 15)}, {});
  (void)world.run({b}, {some_tokens(random, 1)}, {});  // full, and has to wait in HBM
  world.finish();
  REQUIRE(world.runtime->table().slots(1).available() == 0);
  world.release(a);
  // Now it goes home, and the tails of this step take its places in HBM.
  const std::uint32_t c = world.create();
  const std::vector<Tokens> tokens = {some_tokens(random, 1), some_tokens(random, 1)};
  const auto outs = world.run({b, c}, tokens, {});
  world.finish();
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    CHECK(distance(outs[l], 0, world.text.at(b), 1, l) < 2e-3);
    CHECK(distance(outs[l], 1, world.text.at(c), 1, l) < 2e-3);
  }
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: captured steps of sequences that take turns above a file") {
  DeviceWorld world({.hbm = 30, .host = 40, .nvme = 200, .sequences = 1, .tokens = 200});
  Rng random(5);
  const std::vector<std::uint32_t> ids = {world.create(), world.create()};
  for (const std::uint32_t id : ids) (void)world.run({id}, {some_tokens(random, 80)}, {});
  (void)world.run({ids[0]}, {some_tokens(random, 1)}, {});
  std::vector<contents::Tensor> k, v, q, out;
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    k.push_back(DeviceWorld::tensor(world.room(kHeads * kDim), 1, kHeads, 1, false));
    v.push_back(DeviceWorld::tensor(world.room(kHeads * kDim), 1, kHeads, 1, false));
    q.push_back(DeviceWorld::tensor(world.room(kQHeads * kDim), 1, kQHeads, 1, false));
    out.push_back(DeviceWorld::tensor(world.room(kQHeads * kDim), 1, kQHeads, 1, false));
  }
  std::vector<FakeKvDevice::Op> graph;
  for (std::uint32_t step = 0; step < 24; ++step) {
    CAPTURE(step);
    const std::uint32_t id = ids[step / 3 % 2];
    const std::vector<Tokens> tokens = {some_tokens(random, 1)};
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      std::memcpy(k[l].data, world.made(0, l, kHeads, tokens, 1, false).data, kHeads * kDim * 2);
      std::memcpy(v[l].data, world.made(1, l, kHeads, tokens, 1, false).data, kHeads * kDim * 2);
      std::memcpy(q[l].data, world.made(2, l, kQHeads, tokens, 1, false).data, kQHeads * kDim * 2);
    }
    world.begin({id}, tokens);
    if (step == 0) {
      world.device->begin_capture();
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        REQUIRE(world.contents->append(l, k[l], v[l]));
        contents::AttendCall call;
        call.q = q[l];
        call.out = out[l];
        REQUIRE(world.contents->attend(l, call));
      }
      graph = world.device->end_capture();
    }
    world.device->replay(graph);
    REQUIRE(world.contents->end());
    world.finish();
    for (std::uint32_t l = 0; l < kLayers; ++l)
      CHECK(distance(out[l], 0, world.text.at(id), 1, l) < 2e-3);
  }
  CHECK(world.wrong_rows() == 0);
  CHECK(world.runtime->totals().link[2].count > 50);
}

TEST_CASE("device contents: a batch that the home tier cannot hold is refused, and stays whole") {
  DeviceWorld world({.hbm = 30, .host = 40, .nvme = 200});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create();
  for (const std::uint32_t id : {a, b}) (void)world.run({id}, {some_tokens(random, 80)}, {});
  // Five pages of 6 groups each: 60 for 40 places.
  const Status both = world.contents->begin(std::vector<runtime::SequenceId>{a, b},
                                            std::vector<std::uint32_t>{1, 1}, nullptr);
  REQUIRE_FALSE(both);
  CHECK(both.error().code == Code::kRefused);
  const Status longer = world.contents->begin(std::vector<runtime::SequenceId>{a},
                                              std::vector<std::uint32_t>{40}, nullptr);
  REQUIRE_FALSE(longer);
  CHECK(longer.error().code == Code::kRefused);
  for (const std::uint32_t id : {b, a}) {
    const auto outs = world.run({id}, {some_tokens(random, 1)}, {});
    world.finish();
    for (std::uint32_t l = 0; l < kLayers; ++l)
      CHECK(distance(outs[l], 0, world.text.at(id), 1, l) < 2e-3);
  }
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE(
    "device contents: a page that waited for room at home is not moved down as it is written") {
  DeviceWorld world({.hbm = 60, .host = 12, .nvme = 200});
  Rng random(3);
  const std::uint32_t a = world.create(), c = world.create(), b = world.create();
  (void)world.run({a, c}, {some_tokens(random, 31), some_tokens(random, 16)}, {});
  // The home tier is full of the batch's pages: those of a's second block wait in HBM.
  (void)world.run({a, c}, {some_tokens(random, 1), some_tokens(random, 1)}, {});
  CHECK((world.runtime->table().flags[world.runtime->blocks(a)[1]] & runtime::kTail) != 0);
  // They find room in a step that fills a block of its own batch, and so needs room, too.
  (void)world.run({b}, {some_tokens(random, 31)}, {});
  (void)world.run({b}, {some_tokens(random, 1)}, {});
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: a chunk's layer gathers a sequence that lies in the file") {
  DeviceWorld world({.hbm = 12, .host = 12, .nvme = 200});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create();
  (void)world.run({a}, {some_tokens(random, kPage)}, {});
  (void)world.run({b}, {some_tokens(random, 2 * kPage)}, {});  // takes all of the home tier
  world.suspend(a);  // leaves HBM: now it is in the file alone
  world.resume(a);
  world.truncate(b, 0);
  const std::vector<Tokens> tokens = {some_tokens(random, 2)};
  world.begin({b}, tokens);
  REQUIRE(world.contents->append(0, world.made(0, 0, kHeads, tokens, 2, false),
                                 world.made(1, 0, kHeads, tokens, 2, false)));
  const auto k = DeviceWorld::tensor(world.room(kHeads * kPage * kDim), 1, kHeads, kPage, true);
  const auto v = DeviceWorld::tensor(world.room(kHeads * kPage * kDim), 1, kHeads, kPage, true);
  REQUIRE(world.contents->gather(0, std::vector<runtime::SequenceId>{a}, k, v));
  world.finish();
  const contents::Tensor made = world.made(0, 0, kHeads, {world.text.at(a)}, kPage, true);
  CHECK(std::memcmp(k.data, made.data, std::size_t{kHeads} * kPage * kDim * 2) == 0);
  REQUIRE(world.contents->abandon());
}

TEST_CASE("device contents: a tail leaves the device while another's pages fill the home tier") {
  DeviceWorld world({.hbm = 60, .host = 12, .nvme = 200});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create();
  (void)world.run({a}, {some_tokens(random, 3)}, {});
  (void)world.run({b}, {some_tokens(random, 2 * kPage)}, {});
  world.suspend(a);
  (void)world.run({b}, {some_tokens(random, 1)}, {});
  world.resume(a);
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: what the file returns wrong is found, and ends what relies on it") {
  const auto [plan, code] = GENERATE(table<const char*, Code>({{"read#20=eio", Code::kIo},
                                                               {"read#20=bitflip", Code::kCorrupt},
                                                               {"write#7=enospc", Code::kIo}}));
  CAPTURE(plan);
  const auto faults = transfer::FaultPlan::parse(plan);
  REQUIRE(faults);
  DeviceWorld world({.hbm = 30, .host = 40, .nvme = 200, .faults = *faults});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create();
  Status failed;
  for (std::uint32_t turn = 0; turn < 8 && failed; ++turn) {
    const std::uint32_t id = turn % 2 == 0 ? a : b;
    const std::uint32_t count = turn < 2 ? 80 : 1;
    failed = world.contents->begin(std::vector<runtime::SequenceId>{id},
                                   std::vector<std::uint32_t>{count}, nullptr);
    if (!failed) break;
    (void)world.layers({some_tokens(random, count)}, {}, false);
    REQUIRE(world.contents->end());
  }
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == code);
  for (const std::uint32_t id : {a, b}) {
    CHECK(world.contents
              ->begin(std::vector<runtime::SequenceId>{id}, std::vector<std::uint32_t>{1}, nullptr)
              .error()
              .code == code);
  }
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

TEST_CASE("device contents: a chunk in which nobody gets a token attends to nothing") {
  DeviceWorld world({.hbm = 64});
  Rng random(3);
  const std::uint32_t a = world.create(), b = world.create();
  (void)world.run({a}, {some_tokens(random, 20)}, {});
  (void)world.run({a, b}, {Tokens{}, Tokens{}}, {});
  CHECK(world.runtime->tokens(a) == 20U);
  CHECK(world.wrong_rows() == 0);
}

TEST_CASE("device contents: memory that is not to be had ends the call, not the runtime") {
  DeviceWorld world({.hbm = 64});
  Rng random(3);
  const std::uint32_t a = world.create();
  (void)world.run({a}, {some_tokens(random, 20)}, {});
  world.finish();
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
  CHECK(code(options) == Code::kUnsupported);  // a third tier that nobody named
  options.below = 2;
  REQUIRE(contents::DeviceContents::create(options, std::make_unique<FakeKvDevice>(1)));
  options.nvme_directory = "/nowhere/at/all";
  CHECK_FALSE(contents::DeviceContents::create(options, std::make_unique<FakeKvDevice>(1)));
  options.below = 0;
  options.tier_pages = {16, 16};
  options.contents.geometry.head_dim = 24;
  CHECK(code(options) == Code::kUnsupported);
  options.contents.geometry.head_dim = 64;
  options.contents.rounding = contents::Rounding::kE4m3;
  CHECK(code(options) == Code::kUnsupported);
}
