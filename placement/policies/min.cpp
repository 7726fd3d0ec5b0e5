// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include "placement/policies/index_lists.hpp"
#include "placement/policies/key_queue.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

namespace {

/// The resident object of furthest next use that may leave, or kNoPage.
PageId furthest(const KeyQueue& queue, std::span<const std::uint16_t> guard) {
  PageId id = queue.max();
  while (id != kNoPage && held(guard, id)) id = queue.down(id);
  return id;
}

class MinOrder final : public Replacement {
 public:
  void reset(std::uint32_t /*capacity*/, std::uint32_t id_bound) override {
    queue_.reset(id_bound);
  }
  void hit(std::span<const PageId> ids, std::span<const Tick> next_use) override {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      queue_.remove(ids[i]);
      queue_.insert(ids[i], next_use.empty() ? kNever : next_use[i]);
    }
  }
  PageId victim(PageId incoming, Tick next_use, std::span<const std::uint16_t> guard) override {
    const PageId v = furthest(queue_, guard);
    if (incoming == kNoPage || v == kNoPage) return v;
    return queue_.key(v) > next_use ? v : incoming;
  }
  void evict(PageId id) override { queue_.remove(id); }
  void insert(PageId id, Tick next_use) override { queue_.insert(id, next_use); }
  void erase(PageId id) override {
    if (queue_.contains(id)) queue_.remove(id);
  }

 private:
  KeyQueue queue_;
};

/// Belady's rule for layers: of the residents and the pages just read, keep those of nearest next
/// use. As a page that hits cannot leave before its layer ends, which of several pages of equal
/// next use is kept can matter one layer later; next uses do not say, and such a tie may cost a
/// miss.
class Min final : public Policy {
 public:
  void begin(const PolicyContext& /*context*/) override { queue_.reset(0); }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (!columns.in_hbm(pages[i])) continue;
      queue_.insert(pages[i], first_use.empty() ? kNever : first_use[i]);
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId p : pages) {
      if (queue_.contains(p)) queue_.remove(p);
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    add_pages(view.filled, view.filled_next_use, view.pages);
    // The layer's own pages may not leave before it ends: out of the queue they are in nobody's
    // way.
    misses_.clear();
    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      const Tick next = view.next_use.empty() ? kNever : view.next_use[i];
      if (view.hit[i] != 0) {
        queue_.remove(view.selected[i]);
      } else if (next != kNever) {
        misses_.push_back({next, view.selected[i]});
      }
    }
    std::stable_sort(misses_.begin(), misses_.end(),
                     [](const Miss& a, const Miss& b) { return a.next_use < b.next_use; });

    std::uint32_t free = view.free_slots;
    for (; free < view.must_free; ++free) {
      if (!drop_furthest(view.pages.guard, 0, plan)) break;
    }
    free = free > view.must_free ? free - view.must_free : 0;
    for (const Miss& miss : misses_) {
      if (free > 0) {
        --free;
      } else if (!drop_furthest(view.pages.guard, miss.next_use, plan)) {
        break;  // the further misses are worth even less
      }
      plan.install.push_back(miss.page);
      installed_.push_back(miss);
    }

    for (std::size_t i = 0; i < view.selected.size(); ++i) {
      if (view.hit[i] == 0) continue;
      queue_.insert(view.selected[i], view.next_use.empty() ? kNever : view.next_use[i]);
    }
    for (const Miss& m : installed_) queue_.insert(m.page, m.next_use);
    installed_.clear();
  }

 private:
  struct Miss {
    Tick next_use;
    PageId page;
  };

  /// Drops the resident of furthest next use if that is beyond `than`.
  bool drop_furthest(std::span<const std::uint16_t> guard, Tick than, LayerPlan& plan) {
    const PageId v = furthest(queue_, guard);
    if (v == kNoPage || queue_.key(v) <= than) return false;
    queue_.remove(v);
    plan.drop.push_back(v);
    return true;
  }

  KeyQueue queue_;
  std::vector<Miss> misses_;
  std::vector<Miss> installed_;
};

}  // namespace

const PolicyDescriptor& min_descriptor() {
  static const PolicyDescriptor descriptor{
      "min",
      "oracle: what is read again last leaves or is not installed (Belady, with bypass)",
      {},
      {.needs_future = true, .block_cache = true},
      [](const Parameters&) -> std::unique_ptr<Policy> { return std::make_unique<Min>(); },
      [](const Parameters&) -> std::unique_ptr<Replacement> {
        return std::make_unique<MinOrder>();
      },
  };
  return descriptor;
}

}  // namespace lehr::placement
