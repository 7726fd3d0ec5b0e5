// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/machines/cuda/decode_machine.hpp"
#include "runtime/runtime.hpp"
#include "tests/runtime/cuda/fake_device.hpp"
#include "tests/support/tiny_platform.hpp"

// The decode machine over a device of host memory, and lives on it.

namespace lehr::test {

inline constexpr std::uint32_t kLayers = 3, kHeads = 2, kTokens = FakeDevice::kPageTokens;
inline constexpr KvGeometry kGeometry{.layers = kLayers,
                                      .kv_heads = kHeads,
                                      .q_heads = 4,
                                      .head_dim = 64,
                                      .page_tokens = kTokens,
                                      .element_bytes = 2};

struct WorldOptions {
  std::string policy;
  std::vector<std::uint32_t> tier_pages;  ///< HBM, host memory and, if there is a third, a file
  runtime::BelowOptions below = {};
  Pace pace = Pace::kRandom;
  std::uint64_t seed = 5;
  std::size_t late = 0;
  std::uint32_t join_late = 0;
};

struct World {
  std::unique_ptr<runtime::Runtime> runtime;
  cuda::DecodeMachine* machine = nullptr;
  FakeDevice* device = nullptr;
  std::shared_ptr<cuda::DecodeLog> log;
  std::vector<runtime::SequenceId> live, asleep;
};

inline World make_world(const WorldOptions& options) {
  World w;
  runtime::CudaMachineOptions o;
  o.platform = tiny_platform(options.tier_pages.size() > 2);
  // Time for some arrivals in every layer: a page crosses in less time than HBM needs for a few.
  o.platform.hbm = BandwidthCurve(2000.0);
  o.platform.links[0].curve = BandwidthCurve(1000.0);
  o.tier_pages = options.tier_pages;
  o.geometry = kGeometry;
  o.check_reads = true;
  o.below = options.below;
  o.log = w.log = std::make_shared<cuda::DecodeLog>();
  cuda::ProgramOptions program;
  program.layers = kLayers;
  program.check_reads = true;
  program.join_late = options.join_late;
  const std::vector<std::uint32_t> places{o.tier_pages[kHbm], o.home_places()};
  auto device =
      std::make_unique<FakeDevice>(places, static_cast<std::uint32_t>(kGeometry.page_bytes()),
                                   program, options.pace, options.seed, options.late);
  w.device = device.get();
  auto machine = cuda::DecodeMachine::create(o, std::move(device));
  REQUIRE(machine);
  w.machine = machine->get();
  runtime::RuntimeOptions r;
  r.platform = o.platform;
  r.geometry = kGeometry;
  r.tier_pages = o.tier_pages;
  r.policy = options.policy;
  auto made = runtime::Runtime::create(r, *std::move(machine));
  REQUIRE(made);
  w.runtime = *std::move(made);
  return w;
}

inline void must(const Status& status) {
  INFO((status ? std::string() : status.error().what));
  REQUIRE(status);
}

inline runtime::SequenceId create(World& w, std::uint64_t prompt) {
  const runtime::SequenceInfo info{prompt, {}};
  const auto made = w.runtime->create_sequences({&info, 1});
  REQUIRE(made);
  w.live.push_back(made->front());
  return made->front();
}

struct RandomReads {
  std::uint32_t one_in = 3;  ///< pages
  /// Random masses too; some groups are named by nobody, and still write their token.
  bool masses = false;
};

/// A step that reads some of the pages, at random.
inline Status random_step(World& w, Rng& rng, RandomReads reads = {}) {
  runtime::Runtime& r = *w.runtime;
  LEHR_TRY(r.begin_step(w.live));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<runtime::GroupSelection> groups;
    std::vector<std::vector<std::uint32_t>> pages;
    std::vector<std::vector<MassCode>> mass;
    pages.reserve(w.live.size() * kHeads);
    mass.reserve(w.live.size() * kHeads);
    for (std::size_t i = 0; i < w.live.size() * kHeads; ++i) {
      const runtime::SequenceId s = w.live[i / kHeads];
      const auto blocks = static_cast<std::uint32_t>((*r.tokens(s) + kTokens - 1) / kTokens);
      auto& chosen = pages.emplace_back();
      auto& codes = mass.emplace_back();
      for (std::uint32_t p = 0; p < blocks; ++p) {
        if (reads.masses) codes.push_back(static_cast<MassCode>(rng.below(256)));
        if (rng.below(reads.one_in) == 0) chosen.push_back(p);
      }
      if (reads.masses && rng.below(8) == 0) continue;
      runtime::GroupSelection g;
      g.sequence = s;
      g.kv_head = static_cast<std::uint32_t>(i % kHeads);
      g.pages = chosen;
      g.mass = g.peak = reads.masses ? codes.data() : nullptr;
      groups.push_back(g);
    }
    LEHR_TRY(r.run_layer(layer, groups));
  }
  if (const auto ended = r.end_step(); !ended) return ended.error();
  return {};
}

}  // namespace lehr::test
