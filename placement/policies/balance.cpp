// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "placement/policies/density.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"half-life",
                  "visits after which a visit counts half, in multiples of the capacity", 8, 0.01,
                  1e6},
};

/// Equalises what HBM and the link take: misses that the link carries beside the layer cost nothing
/// and are read in place for ever; only those beyond the hidden-miss budget are worth a move, the
/// densest first, and only for less dense pages.
class Balance final : public Policy {
 public:
  explicit Balance(const Parameters& p) : order_(p.at("half-life")) {}

  void begin(const PolicyContext& context) override {
    page_bytes_ = std::max<Bytes>(context.page_bytes, 1);
    home_ = context.platform != nullptr ? context.platform->home : TierId{1};
    order_.reset(context.capacity, 0);
  }
  void add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                 const PageColumns& columns) override {
    for (const PageId p : pages) {
      if (columns.in_hbm(p)) order_.insert(p, kNever);
    }
  }
  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) order_.erase(p);
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    for (const PageId p : view.filled) {
      if (view.pages.in_hbm(p)) order_.insert(p, kNever);
    }
    hits_.clear();
    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      if (view.hit[i] != 0) hits_.push_back(view.selected[i]);
    }
    order_.hit(hits_, {});
    std::uint32_t free = view.free_slots;
    for (; free < view.must_free; ++free) {
      if (!drop(order_.victim(kNoPage, kNever, view.pages.guard), plan)) break;
    }
    free = free > view.must_free ? free - view.must_free : 0;

    misses_.assign(view.missed.begin(), view.missed.end());
    for (const PageId p : misses_) order_.count_miss(p);
    const std::uint64_t hidden = view.from_tier[home_].hidden_bytes / page_bytes_;
    if (misses_.size() <= hidden) return;
    const auto wanted = static_cast<std::ptrdiff_t>(misses_.size() - hidden);
    std::stable_sort(misses_.begin(), misses_.end(),
                     [this](PageId a, PageId b) { return order_.density(a) > order_.density(b); });
    for (auto it = misses_.begin(); it != misses_.begin() + wanted; ++it) {
      if (free > 0) {
        --free;
      } else {
        const PageId v = order_.least_dense(view.pages.guard);
        if (v == kNoPage || order_.density(v) >= order_.density(*it)) break;
        drop(v, plan);
      }
      order_.keep(*it);
      plan.install.push_back(*it);
    }
  }

 private:
  bool drop(PageId page, LayerPlan& plan) {
    if (page == kNoPage) return false;
    order_.evict(page);
    plan.drop.push_back(page);
    return true;
  }

  Density order_;
  Bytes page_bytes_ = 1;
  TierId home_ = 1;
  std::vector<PageId> hits_;
  std::vector<PageId> misses_;
};

}  // namespace

const PolicyDescriptor& balance_descriptor() {
  static const PolicyDescriptor descriptor{
      "balance",
      "moves pages only where the link takes longer than HBM: loaded latencies are kept equal",
      kParameters,
      {},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Balance>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
