// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "runtime/config/profile.hpp"
#include "runtime/machines/sim.hpp"
#include "runtime/replay/replay.hpp"

namespace lehr::runtime::test {

/// A cut of a recorded trace on a shipped profile, with HBM for a share of the pages.
class RecordedCut {
 public:
  RecordedCut(double hbm, std::uint32_t steps)
      : trace_(open()), selection_(trace_, *SelectionRule::parse("mass:0.95")) {
    workload_.sequences = {{&selection_, 0}};
    auto platform = config::load_profile("gh200");
    REQUIRE(platform);
    options_.runtime.platform = std::move(*platform);
    auto& pages = options_.runtime.tier_pages;
    pages.assign(options_.runtime.platform.tiers.size(), 1U << 20);
    pages[kHbm] = static_cast<std::uint32_t>(hbm * static_cast<double>(workload_.total_pages()));
    options_.max_steps = steps;
  }

  const formats::AttentionTrace& trace() const { return trace_; }
  const Workload& workload() const { return workload_; }
  ReplayOptions options() const { return options_; }
  Result<ReplayResult> replayed(const ReplayOptions& options) const {
    return replay(workload_, options, make_sim_machine());
  }

 private:
  static formats::AttentionTrace open() {
    auto opened = formats::AttentionTrace::open(LEHR_DATA_DIR "/longdoc-cut.safetensors.zst");
    REQUIRE(opened);
    return std::move(*opened);
  }

  formats::AttentionTrace trace_;
  TraceSelection selection_;
  Workload workload_;
  ReplayOptions options_;
};

}  // namespace lehr::runtime::test
