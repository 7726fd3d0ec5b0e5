// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "placement/oracle.hpp"

namespace lehr::placement {

namespace {

/// Follows a schedule. What a view does not allow is left out: the plan stays within the contract
/// even if the replay is not the one that was planned.
class Planned final : public Policy {
 public:
  Planned(const Instance& instance, const VisitChains& chains, const Schedule& schedule)
      : chains_(chains),
        schedule_(schedule),
        next_(instance.pages()),
        table_(instance.pages(), kNoPage),
        promote_(instance.ticks()),
        leave_(instance.ticks()) {
    for (PageId p = 0; p < instance.pages(); ++p) {
      next_[p] = chains.begin_of(p);
      for (std::uint32_t i = next_[p]; i < chains.end[p]; ++i) {
        if (schedule[i] < promote_.size()) promote_[schedule[i]].push_back(p);
      }
      if (instance.born_in_hbm[p] != 0 && instance.birth[p] < instance.ticks() && !stays(p)) {
        leave_[instance.birth[p]].push_back(p);
      }
    }
  }

  void begin(const PolicyContext&) override {}

  void add_pages(std::span<const PageId> pages, std::span<const Tick>,
                 const PageColumns&) override {
    for (const PageId id : pages) {
      if (known_ == table_.size()) return;
      if (id >= instance_page_.size()) instance_page_.resize(id + std::size_t{1}, kNoPage);
      instance_page_[id] = known_;
      table_[known_++] = id;
    }
  }

  void remove_pages(std::span<const PageId> pages) override {
    for (const PageId id : pages) {
      if (id >= instance_page_.size() || instance_page_[id] == kNoPage) continue;
      table_[instance_page_[id]] = kNoPage;
      instance_page_[id] = kNoPage;
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    if (view.tick < leave_.size()) drop_unwanted(view, plan);
    std::size_t room = view.free_slots + plan.drop.size();
    room -= std::min<std::size_t>(room, view.must_free);
    for (std::size_t i = 0; i < view.selected.size(); ++i) visit(view, i, room, plan);
    if (view.tick < promote_.size()) promote(view, room, plan);
  }

 private:
  void drop_unwanted(const LayerView& view, LayerPlan& plan) const {
    for (const PageId p : leave_[view.tick]) {
      if (table_[p] != kNoPage && view.pages.evictable(table_[p])) plan.drop.push_back(table_[p]);
    }
  }

  /// Of the i-th selected page: does it stay, or leave, or come?
  void visit(const LayerView& view, std::size_t i, std::size_t& room, LayerPlan& plan) {
    const PageId id = view.selected[i];
    const PageId p = id < instance_page_.size() ? instance_page_[id] : kNoPage;
    if (p == kNoPage) return;
    if (next_[p] < chains_.end[p]) ++next_[p];
    if (view.hit[i] != 0) {
      if (!stays(p) && view.pages.guard[id] <= 1) plan.drop_after.push_back(id);
    } else if (stays(p) && room > 0) {
      plan.install.push_back(id);
      --room;
    }
  }

  void promote(const LayerView& view, std::size_t room, LayerPlan& plan) const {
    for (const PageId p : promote_[view.tick]) {
      if (table_[p] == kNoPage || view.pages.in_hbm(table_[p]) || room == 0) continue;
      plan.promote.push_back({table_[p], true});
      --room;
    }
  }

  /// Whether the page is kept for its next visit.
  bool stays(PageId p) const { return next_[p] < chains_.end[p] && schedule_[next_[p]] == kKept; }

  const VisitChains& chains_;
  const Schedule& schedule_;
  std::vector<std::uint32_t> next_;  ///< by page of the instance: its next visit
  std::vector<PageId> table_;        ///< and its id in the page table
  std::vector<PageId> instance_page_;
  std::vector<std::vector<PageId>> promote_;  ///< by tick
  std::vector<std::vector<PageId>> leave_;    ///< born in HBM and not wanted there
  PageId known_ = 0;
};

}  // namespace

std::unique_ptr<Policy> planned_policy(const Instance& instance, const VisitChains& chains,
                                       const Schedule& schedule) {
  return std::make_unique<Planned>(instance, chains, schedule);
}

}  // namespace lehr::placement
