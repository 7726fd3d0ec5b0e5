// SPDX-License-Identifier: Apache-2.0
#include "placement/plan_check.hpp"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace lehr::placement {

namespace {

Error broken(const char* what, PageId page) {
  return internal_error(std::string("plan: ") + what + ", page " + std::to_string(page));
}

Status check_drops(const PageColumns& pages, const LayerPlan& plan,
                   std::unordered_set<PageId>& dropped) {
  for (const PageId p : plan.drop) {
    if (p >= pages.residency.size()) return broken("drop of a page that does not exist", p);
    if (!pages.in_hbm(p)) return broken("drop of a page that is not in HBM", p);
    if (pages.guard[p] != 0)
      return broken("drop of a page that is pinned, leased or being read", p);
    if (!dropped.insert(p).second) return broken("a page dropped twice", p);
  }
  return {};
}

Status check_arrivals(const LayerView& view, const LayerPlan& plan,
                      std::unordered_set<PageId>& arriving) {
  const std::unordered_set<PageId> missed(view.missed.begin(), view.missed.end());
  for (const PageId p : plan.install) {
    if (!missed.contains(p)) return broken("install of a page that was not missed", p);
    if (!arriving.insert(p).second) return broken("a page installed twice", p);
  }
  for (const Promotion& m : plan.promote) {
    if (m.page >= view.pages.residency.size()) return broken("promotion of no page", m.page);
    if (view.pages.in_hbm(m.page)) return broken("promotion of a page that is in HBM", m.page);
    if (!arriving.insert(m.page).second) return broken("a page promoted twice", m.page);
  }
  return {};
}

Status check_late_drops(const LayerView& view, const LayerPlan& plan,
                        const std::unordered_set<PageId>& arriving,
                        std::unordered_set<PageId>& dropped) {
  const PageColumns& pages = view.pages;
  const std::unordered_set<PageId> selected(view.selected.begin(), view.selected.end());
  for (const PageId p : plan.drop_after) {
    const bool here = p < pages.residency.size() && (pages.in_hbm(p) || arriving.contains(p));
    if (!here) return broken("late drop of a page that is not in HBM", p);
    // Pages of the current selection carry the layer's own guard of one.
    if (pages.guard[p] > (selected.contains(p) ? 1 : 0))
      return broken("late drop of a held page", p);
    if (!dropped.insert(p).second) return broken("a page dropped twice", p);
  }
  return {};
}

Status check_lowered(const LayerView& view, const LayerPlan& plan) {
  if (plan.lower.empty()) return {};
  const PageColumns& pages = view.pages;
  if (pages.lowered.empty()) return broken("lower precision is not allowed", plan.lower.front());
  const TierId home = view.home;
  const std::unordered_set<PageId> selected(view.selected.begin(), view.selected.end());
  std::unordered_set<PageId> lowered;
  for (const PageId p : plan.lower) {
    if (!selected.contains(p)) return broken("lowering of a page that is not at hand", p);
    if (pages.lowered[p] != 0) return broken("lowering of a lowered page", p);
    if (pages.guard[p] > 1) return broken("lowering of a held page", p);
    if (!resident(pages.residency[p], home)) return broken("lowering of a page without a home", p);
    if (!lowered.insert(p).second) return broken("a page lowered twice", p);
  }
  return {};
}

}  // namespace

Status check_plan(const LayerView& view, const LayerPlan& plan) {
  std::unordered_set<PageId> dropped;
  std::unordered_set<PageId> arriving;
  LEHR_TRY(check_drops(view.pages, plan, dropped));
  LEHR_TRY(check_arrivals(view, plan, arriving));
  if (view.free_slots + plan.drop.size() < view.must_free + arriving.size()) {
    return internal_error("plan: " + std::to_string(arriving.size()) + " arrivals and " +
                          std::to_string(view.must_free) + " tails for " +
                          std::to_string(view.free_slots) + " free slots and " +
                          std::to_string(plan.drop.size()) + " drops");
  }
  LEHR_TRY(check_lowered(view, plan));
  return check_late_drops(view, plan, arriving, dropped);
}

}  // namespace lehr::placement
