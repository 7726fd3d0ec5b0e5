// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "runtime/runtime.hpp"

namespace lehr::runtime {

/// Working memory of one layer of one step; kept between layers so that the loop allocates nothing.
struct Runtime::Layer {
  std::uint32_t index = 0;
  Tick tick = 0;

  std::vector<std::uint8_t> named;  ///< by sequence of the batch and KV head: its group was seen
  std::vector<PageId> selected;
  std::vector<std::uint8_t> hit;
  std::vector<PageId> missed;
  std::vector<MassCode> mass;
  std::vector<MassCode> peak;
  std::vector<Tick> next_use;
  /// Masses of pages that a sequence before reads too, where pages may be lowered.
  std::vector<std::pair<PageId, MassCode>> read_again;
  std::vector<Tick> tick_before;  ///< last_tick of each selected page, to undo a refusal
  std::vector<GroupView> groups;
  std::vector<PageId> filled;
  std::vector<Tick> filled_next_use;
  std::vector<PageId> tails;               ///< of the batch, in this layer
  std::vector<std::uint32_t> tail_length;  ///< tokens of each after this step's append
  std::vector<PageId> absent;              ///< tails that need an HBM slot now
  std::vector<PageId> arrived;

  placement::LayerLoad load;
  placement::LayerTime time;
  LayerPlan plan;
  std::vector<PageOp> ops;
  std::vector<GroupWork> work;            ///< for machines that attend
  std::vector<std::uint8_t> shared_hits;  ///< of groups that read pages which others read too
  std::vector<std::uint8_t> page_hits;    ///< by page, where there are such groups
  StepReport report;

  void begin(std::uint32_t layer, Tick at) {
    index = layer;
    tick = at;
    selected.clear();
    hit.clear();
    missed.clear();
    mass.clear();
    peak.clear();
    next_use.clear();
    read_again.clear();
    tick_before.clear();
    groups.clear();
    filled.clear();
    filled_next_use.clear();
    tails.clear();
    tail_length.clear();
    absent.clear();
    arrived.clear();
    load = {};
    plan.clear();
    ops.clear();
    work.clear();
    shared_hits.clear();
    report = {};
  }
};

}  // namespace lehr::runtime
