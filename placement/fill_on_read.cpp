// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

/// Plays a replacement order over the layers: hits in order, room for the tails, then each miss in
/// order.
class OnMiss final : public Policy {
 public:
  OnMiss(std::unique_ptr<Replacement> order, bool second_crossing)
      : order_(std::move(order)), second_crossing_(second_crossing) {}

  void begin(const PolicyContext& context) override { order_->reset(context.capacity, 0); }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (!columns.in_hbm(pages[i])) continue;
      order_->insert(pages[i], first_use.empty() ? kNever : first_use[i]);
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) order_->erase(p);
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    split(view);
    for (std::size_t i = 0; i < view.filled.size(); ++i) {
      if (!view.pages.in_hbm(view.filled[i])) continue;
      order_->insert(view.filled[i],
                     view.filled_next_use.empty() ? kNever : view.filled_next_use[i]);
    }
    order_->hit(std::span(hits_).first(hit_count_), hit_next_);
    std::uint32_t free = view.free_slots;
    while (free < view.must_free) {
      const PageId v = order_->victim(kNoPage, kNever, view.pages.guard);
      if (v == kNoPage) break;
      drop(v, plan);
      ++free;
    }
    free = free > view.must_free ? free - view.must_free : 0;
    for (std::size_t i = 0; i < view.missed.size(); ++i) {
      const PageId page = view.missed[i];
      const Tick next = miss_next_.empty() ? kNever : miss_next_[i];
      if (free > 0) {
        --free;
      } else {
        const PageId v = order_->victim(page, next, view.pages.guard);
        if (v == page) continue;
        if (v == kNoPage) break;  // guards do not fall within a layer: nor will the next find one
        drop(v, plan);
      }
      order_->insert(page, next);
      if (second_crossing_) {
        plan.promote.push_back({page, true});
      } else {
        plan.install.push_back(page);
      }
    }
  }

 private:
  void drop(PageId page, LayerPlan& plan) {
    order_->evict(page);
    plan.drop.push_back(page);
  }

  /// The hits, and with full knowledge the next uses of hits and misses.
  void split(const LayerView& view) {
    const std::size_t n = view.selected.size();
    if (hits_.size() < n) hits_.resize(n);
    hit_count_ = 0;
    for (std::size_t i = 0; i < n; ++i) {
      hits_[hit_count_] = view.selected[i];
      hit_count_ += view.hit[i];
    }
    hit_next_.clear();
    miss_next_.clear();
    if (view.next_use.empty()) return;
    for (std::size_t i = 0; i < n; ++i) {
      (view.hit[i] != 0 ? hit_next_ : miss_next_).push_back(view.next_use[i]);
    }
  }

  std::unique_ptr<Replacement> order_;
  bool second_crossing_;
  std::vector<PageId> hits_;  ///< the first hit_count_ are of this layer
  std::size_t hit_count_ = 0;
  std::vector<Tick> hit_next_;
  std::vector<Tick> miss_next_;
};

}  // namespace

std::unique_ptr<Policy> fill_on_read(std::unique_ptr<Replacement> order) {
  return std::make_unique<OnMiss>(std::move(order), false);
}

std::unique_ptr<Policy> promote_after_read(std::unique_ptr<Replacement> order) {
  return std::make_unique<OnMiss>(std::move(order), true);
}

}  // namespace lehr::placement
