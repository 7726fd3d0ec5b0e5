// SPDX-License-Identifier: Apache-2.0
// Contents on a GPU: the lives of the stand-in's test on the real thing. Exits with 77 where there
// is none.
#define CATCH_CONFIG_RUNNER
#include "runtime/machines/cuda/kv_cuda.hpp"
#include "tests/runtime/contents/device_life.hpp"

using namespace lehr;
using namespace lehr::test;

namespace {

/// A copy engine that starts sooner than rings do, and is slower: few pages go by it, many do not.
runtime::KvMovers both_movers() {
  runtime::KvMovers movers;
  for (auto* curves : {&movers.in, &movers.out}) {
    curves->push_back({"link", "ring", 1, 5e-6, BandwidthCurve(50e9)});
    curves->push_back({"link", "copy_engine", 1, 1e-6, BandwidthCurve(5e9)});
  }
  return movers;
}

std::unique_ptr<contents::KvDevice> gpu(const runtime::KvMovers& movers = {}) {
  auto made = runtime::make_cuda_kv_device(0, movers);
  INFO((made ? std::string() : made.error().what));
  REQUIRE(made);
  return *std::move(made);
}

}  // namespace

TEST_CASE("gpu contents: outputs are those of attention, for chunks and single tokens") {
  DeviceWorld world({.hbm = GENERATE(64U, 4096U)}, gpu());
  Rng random(5);
  const std::vector<std::uint32_t> ids = {world.create(), world.create()};
  for (const std::size_t n : {37U, 1U, 1U, 9U, 3U, 1U, 70U, 1U, 200U, 1U}) {
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

TEST_CASE("gpu contents: the same bits wherever pages live") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 7)));
  const std::string policy = GENERATE("lru", "table");
  const bool two_movers = GENERATE(false, true);
  CAPTURE(seed, policy, two_movers);
  DeviceWorld all({}, gpu());
  DeviceWorld few({.hbm = 48, .policy = policy, .plan_pages = 40},
                  gpu(two_movers ? both_movers() : runtime::KvMovers{}));
  CHECK(live(all, few, seed, 200) == 0);
  CHECK(all.wrong_rows() == 0);
  CHECK(few.wrong_rows() == 0);
  CHECK(few.runtime->validate());
  const auto stats = few.contents->stats();
  REQUIRE(stats);
  CHECK(stats->read_in_place > 0);
  CHECK(stats->moved_pages > 0);
}

TEST_CASE("gpu contents: the same bits where most pages lie in a file meanwhile") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 4)));
  const std::string policy = GENERATE("lru", "table");
  CAPTURE(seed, policy);
  DeviceWorld all({}, gpu());
  DeviceWorld few({.hbm = 48, .host = 110, .nvme = 4000, .policy = policy}, gpu());
  CHECK(Turns(all, few, seed).take(200) == 0);
  CHECK(all.wrong_rows() == 0);
  CHECK(few.wrong_rows() == 0);
  CHECK(few.runtime->validate());
  CHECK(few.runtime->totals().link[2].count > 300);
}

TEST_CASE("gpu contents: the same life twice, all pages in HBM, gives the same bits") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 4)));
  DeviceWorld one({}, gpu());
  DeviceWorld other({}, gpu());
  CHECK(live(one, other, seed, 200) == 0);
}

int main(int argc, char** argv) {
  const auto device = runtime::make_cuda_kv_device(0);
  if (!device) {
    std::printf("%s: skipped\n", device.error().what.c_str());
    return 77;
  }
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}
