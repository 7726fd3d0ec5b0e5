// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/lowest_keys.hpp"
#include "placement/policy.hpp"
#include "placement/read_odds.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"order", "weight of the order of ticks against the steps until a page is wanted", 0.25, 0, 4},
    ParameterInfo{"mass", "1: the masses of unread pages are used; 0: only what was read", 1, 0, 1},
    ParameterInfo{"forget", "weight of what was learnt after a step", 0.995, 0.5, 1},
    ParameterInfo{"prior", "observations that a coarser estimate counts for", 6, 0.1, 1000},
};

/// One order over the pages of all layers and sequences: an estimate of the time of next use, from
/// learnt odds. What is wanted last leaves, and a page just read that is wanted last is not kept.
class Table final : public Policy {
 public:
  explicit Table(const Parameters& p)
      : order_(p.at("order")), odds_({p.at("forget"), p.at("prior"), p.at("mass") != 0}) {}

  void begin(const PolicyContext& context) override { layers_ = std::max(1U, context.layers); }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                 const PageColumns& columns) override {
    odds_.add(pages, step_);
    // Nothing is known of them yet: the latest positions first, as HBM was filled.
    for (const PageId p : pages) {
      if (columns.in_hbm(p)) keys_.set(p, -1e6 + columns.position[p]);
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) keys_.erase(p);
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    step_ = view.step;
    odds_.add(view.filled, view.step);
    odds_.observe(view);
    for (const PageId p : view.filled) {
      if (view.pages.in_hbm(p)) keys_.set(p, 0);
    }
    rekey(view);

    std::uint32_t free = view.free_slots;
    for (; free < view.must_free; ++free) {
      const PageId v = keys_.lowest(view.pages.guard);
      if (v == kNoPage) break;
      drop(v, plan);
    }
    free = free > view.must_free ? free - view.must_free : 0;
    wanted_.clear();
    for (const PageId p : view.missed) wanted_.push_back({key_of(p, view), p});
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
      return a.key != b.key ? a.key > b.key : a.page < b.page;
    });
    for (const Wanted& w : wanted_) {
      if (free > 0) {
        --free;
      } else {
        const PageId v = keys_.lowest(view.pages.guard);
        if (v == kNoPage || keys_.key(v) >= w.key) break;
        drop(v, plan);
      }
      plan.install.push_back(w.page);
      installed_.push_back(w);
    }
    for (const Wanted& w : installed_) keys_.set(w.page, w.key);
    installed_.clear();
  }

 private:
  struct Wanted {
    double key;
    PageId page;
  };

  double key_of(PageId page, const LayerView& view) const {
    const double gap = std::min<std::uint32_t>(odds_.gap(page, view.step), 100000);
    const double u = odds_.odds(page) + 0.06 / (2 + gap) + 0.01 / (4 + distance_[view.pages.sequence[page]] - view.pages.position[page]) + 1e-4;
    const double now = view.step + static_cast<double>(view.layer) / layers_;
    return -(order_ * now + 1 / u);
  }

  void rekey(const LayerView& view) {
    for (const GroupView& group : view.groups) {
      if (group.sequence >= distance_.size()) distance_.resize(group.sequence + 1, 0);
      distance_[group.sequence] = static_cast<double>(group.blocks.size());
    }
    for (const GroupView& group : view.groups) {
      const std::size_t full = group.blocks.size() - 1;
      for (std::size_t i = 0; i < full; ++i) {
        const PageId p = group.page(i);
        if (keys_.contains(p)) keys_.set(p, key_of(p, view));
      }
    }
  }

  void drop(PageId page, LayerPlan& plan) {
    keys_.erase(page);
    plan.drop.push_back(page);
  }

  double order_;
  std::uint32_t layers_ = 1;
  Step step_ = 0;
  ReadOdds odds_;
  LowestKeys keys_;
  std::vector<double> distance_;  ///< by sequence: the tail's position
  std::vector<Wanted> wanted_;
  std::vector<Wanted> installed_;
};

}  // namespace

const PolicyDescriptor& table_descriptor() {
  static const PolicyDescriptor descriptor{
      "table",
      "keeps what is likely to be read soonest, by odds learnt from reads and masses",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Table>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
