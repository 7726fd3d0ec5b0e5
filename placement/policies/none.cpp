// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/first_touch.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

/// What is in HBM at the start or filled there stays until a tail needs its slot, the last to come
/// first.
class NeverMigrate final : public Policy {
 public:
  void begin(const PolicyContext& context) override { order_.reset(context.capacity, 0); }
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
    order_.hit({}, {});
    for (std::uint32_t free = view.free_slots; free < view.must_free; ++free) {
      const PageId v = order_.victim(kNoPage, kNever, view.pages.guard);
      if (v == kNoPage) break;
      order_.evict(v);
      plan.drop.push_back(v);
    }
  }

 private:
  FirstTouch order_;
};

}  // namespace

const PolicyDescriptor& none_descriptor() {
  static const PolicyDescriptor descriptor{
      "none",
      "never migrates: what is not in HBM at the start is read in place",
      {},
      {},
      [](const Parameters&) -> std::unique_ptr<Policy> { return std::make_unique<NeverMigrate>(); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
