// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/residency.hpp"
#include "kernels/base/units.hpp"

// The plain structs by which the step loop, the policies and the predictors talk. They know nothing
// of each other beyond these.

namespace lehr {

/// What a page's tokens hold, as far as the embedding engine says: bits of
/// PageColumns::token_classes.
enum TokenClass : std::uint8_t { kNumbers = 1, kNames = 2 };

/// Read-only columns of the page table, indexed by PageId. Valid during one call.
struct PageColumns {
  std::span<const Residency> residency;  ///< tiers with a valid copy
  std::span<const std::uint16_t>
      guard;  ///< > 0: pinned, leased, in flight or read by the current layer
  std::span<const std::uint32_t> position;  ///< index of the page in its sequence, from 0
  std::span<const std::uint16_t> layer;
  std::span<const std::uint16_t>
      sequence;  ///< small dense number; a shared page keeps its first owner's
  std::span<const std::uint8_t> token_classes{};  ///< bits of TokenClass; empty if unknown
  std::span<const float> importance{};  ///< rank in [0, 1] (Importance); empty where nobody scores
  std::span<const std::uint8_t>
      lowered{};  ///< 1: stored at the lower precision; empty where none is allowed

  bool in_hbm(PageId page) const { return resident(residency[page], kHbm); }
  bool evictable(PageId page) const { return guard[page] == 0 && in_hbm(page); }
  bool is_lowered(PageId page) const { return !lowered.empty() && lowered[page] != 0; }
};

/// One KV group (sequence and KV head) of the current layer: all pages of its context, read or not.
/// Page i of the group is blocks[i] + offset; runs of up to 64 pages are contiguous.
struct GroupView {
  std::span<const PageId> blocks;
  PageId offset = 0;
  const MassCode* mass =
      nullptr;  ///< blocks.size() codes, mean over the query heads; null if unknown
  const MassCode* peak = nullptr;  ///< the same, maximum over the query heads; null if unknown
  std::uint32_t first = 0;  ///< its selected pages are LayerView::selected[first, first + count)
  std::uint32_t count = 0;
  std::uint32_t sequence = 0;
  std::uint32_t kv_head = 0;

  PageId page(std::size_t i) const { return blocks[i] + offset; }
};

/// What the link from a tier to HBM can do in the current layer.
struct LinkView {
  /// Bytes that may cross in this layer without lengthening it; the layer's misses are the first of
  /// them.
  Bytes hidden_bytes = 0;
  Seconds seconds_per_page = 0;  ///< of further pages, at the present batch size
};

inline constexpr std::uint32_t kMaxHorizon = 8;  ///< steps ahead of which anybody speaks

/// What a predictor says of all pages. Columns are indexed by PageId; each speaks of the next times
/// that the page's own layer runs, of which a page's layer that is still to come in this step has
/// one more.
struct Forecast {
  std::array<std::span<const float>, kMaxHorizon>
      odds{};  ///< [k]: probability of a read at the (k + 1)-th next run of its layer
  std::uint32_t horizon = 0;  ///< columns in use
  std::uint32_t window = 1;   ///< steps ahead for which promotions pay, at most horizon
  float confidence =
      0;            ///< share of the next step's reads that its likeliest pages cover, in [0, 1]
  float error = 0;  ///< reads foretold against reads seen, relative, of late
  bool paused = false;  ///< the error passed its limit: nothing should move on this word
};

/// One layer of one step for the whole batch, after its selection was resolved. The tail page of
/// each group is left out: it is written in HBM, always read, and no policy moves it.
struct LayerView {
  Step step = 0;
  std::uint32_t layer = 0;
  std::uint32_t layers = 0;
  Tick tick = 0;  ///< step * layers + layer

  std::span<const PageId> selected;   ///< distinct pages, by sequence, KV head, position
  std::span<const std::uint8_t> hit;  ///< aligned with selected: 1 if in HBM at the layer's start
  std::span<const PageId> missed;     ///< the selected pages that were not
  std::span<const MassCode> mass;     ///< aligned with selected; empty if unknown
  std::span<const MassCode> peak;     ///< aligned with selected; empty if unknown
  std::span<const Tick>
      next_use;  ///< aligned with selected: tick of the next read; only with full knowledge
  std::span<const GroupView> groups;
  std::span<const PageId>
      filled;  ///< tails of this layer that became full in the step before: now evictable
  std::span<const Tick> filled_next_use;  ///< aligned with filled; only with full knowledge

  std::uint32_t capacity = 0;  ///< HBM slots in all
  std::uint32_t free_slots = 0;
  std::uint32_t must_free =
      0;  ///< slots that drops have to free in any case, for tails opened in this layer
  std::array<LinkView, kMaxTiers> from_tier{};  ///< by source tier
  TierId home = 1;                              ///< the tier that full pages are written to
  bool planned = true;  ///< false: between two plans of the layer; odds are as they were told last

  /// By PageId: probability that the next run of the page's layer reads it, this layer's outcome
  /// included. Empty without a predictor, and while none is to be trusted.
  std::span<const float> odds;
  Forecast forecast;  ///< the same and more; horizon 0 without a predictor
  PageColumns pages;
};

/// A copy to HBM ahead of need. Background promotions use link time that the steps leave over;
/// urgent ones are carried in the current layer and may lengthen it.
struct Promotion {
  PageId page = kNoPage;
  bool urgent = false;
};

/// What a policy decides in a layer. Applied in this order: drop, install, promote, (layer runs),
/// lower, drop_after.
struct LayerPlan {
  std::vector<PageId>
      drop;  ///< evictable pages (never of the current selection): slots free at once
  std::vector<PageId>
      install;  ///< subset of missed: keep what the read brings (fill on read, one crossing)
  std::vector<Promotion> promote;  ///< pages not in HBM and not in `install`
  std::vector<PageId>
      drop_after;  ///< free when the layer ends; may name pages of the current selection
  /// Pages of the current selection that take the lower precision for good when the layer has run:
  /// full so far, with a copy at home, held by nobody but the layer. Only where it is allowed.
  std::vector<PageId> lower;

  void clear() {
    drop.clear();
    install.clear();
    promote.clear();
    drop_after.clear();
    lower.clear();
  }
};

}  // namespace lehr
