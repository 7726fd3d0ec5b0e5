// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "runtime/runtime.hpp"
#include "tests/support/content_machine.hpp"
#include "tests/support/tiny_platform.hpp"

namespace lehr::test {

/// One layer, one KV head, pages of 4 tokens and 8 bytes (2 x 4 x 1 x 1).
inline runtime::RuntimeOptions small(std::uint32_t hbm_pages, const char* policy = "lru") {
  runtime::RuntimeOptions o;
  o.platform = test::tiny_platform();
  o.geometry = {.layers = 1,
                .kv_heads = 1,
                .q_heads = 1,
                .head_dim = 1,
                .page_tokens = 4,
                .element_bytes = 1};
  o.tier_pages = {hbm_pages, 100};
  o.policy = policy;
  return o;
}

inline std::unique_ptr<runtime::Runtime> make(runtime::RuntimeOptions options) {
  auto made =
      runtime::Runtime::create(std::move(options), std::make_unique<test::ContentMachine>());
  REQUIRE(made);
  return *std::move(made);
}

inline runtime::SequenceId start(runtime::Runtime& r, std::uint64_t prompt) {
  const runtime::SequenceInfo info{prompt, {}};
  auto ids = r.create_sequences({&info, 1});
  REQUIRE(ids);
  return ids->front();
}

inline runtime::StepReport step(runtime::Runtime& r, runtime::SequenceId s,
                                const std::vector<std::uint32_t>& pages) {
  REQUIRE(r.begin_step({&s, 1}));
  runtime::GroupSelection g;
  g.sequence = s;
  g.pages = pages;
  const Status ran = r.run_layer(0, {&g, 1});
  INFO((ran ? std::string() : ran.error().what));
  REQUIRE(ran);
  auto report = r.end_step();
  REQUIRE(report);
  REQUIRE(r.validate());
  return *report;
}

}  // namespace lehr::test
