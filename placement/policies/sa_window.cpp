// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "placement/policies/first_touch.hpp"
#include "placement/policy.hpp"
#include "placement/window_ranking.hpp"

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"window", "steps whose visits count, at first", 50, 1, 4096},
    ParameterInfo{"share", "of the moves that the ranking wants, the part done in a step", 0.5, 0,
                  1},
    ParameterInfo{"evaluations", "pairs of both that the annealing plays; 1: none but the first",
                  24, 1, 1000},
};

/// The published scheme in the step loop. It anneals window and share on the replay that follows,
/// and knows its visits: an upper estimate. Without the replay it is `static`.
class SaWindow final : public Policy {
 public:
  explicit SaWindow(const Parameters& p) {
    options_.start = {static_cast<std::uint32_t>(p.at("window")), p.at("share")};
    options_.most = static_cast<std::uint32_t>(p.at("evaluations"));
    options_.warmup_steps = 0;
  }

  void begin(const PolicyContext& context) override {
    static_ = fill_on_read(std::make_unique<FirstTouch>());
    static_->begin(context);
    ranking_.reset();
    sequences_.clear();
    page_.clear();
    held_back_.clear();
    born_ = 0;
    in_ = context.future;
    if (in_ == nullptr || in_->name.size() != in_->pages()) return;
    options_.seed = context.seed;
    const auto plan = anneal_window(*in_, options_);
    if (!plan) return;
    residents_.emplace(in_->pages());
    ranking_.emplace(*in_, plan->choice, *residents_);
    births_ = by_birth(*in_);
    id_.assign(in_->pages(), kNoPage);
    for (PageId p = 0; p < in_->pages(); ++p) {
      const PageName& n = in_->name[p];
      if (n.sequence >= sequences_.size()) sequences_.resize(n.sequence + std::size_t{1});
      Known& s = sequences_[n.sequence];
      s.groups.resize(std::size_t{context.layers} * context.kv_heads);
      auto& group = s.groups[std::size_t{n.layer} * context.kv_heads + n.kv_head];
      if (n.position >= group.size()) group.resize(n.position + std::size_t{1}, kNoPage);
      group[n.position] = p;
      s.from = std::min(s.from, in_->birth[p]);
      s.to = std::max(s.to, in_->death[p]);
    }
    heads_ = context.kv_heads;
  }

  void add_pages(std::span<const PageId> pages, std::span<const Tick> first_use,
                 const PageColumns& columns) override {
    if (!ranking_) static_->add_pages(pages, first_use, columns);
  }

  void remove_pages(std::span<const PageId> pages) override {
    if (!ranking_) return static_->remove_pages(pages);
    for (const PageId id : pages) {
      if (id >= page_.size() || page_[id] == kNoPage) continue;
      residents_->leave(page_[id]);
      id_[page_[id]] = kNoPage;
      page_[id] = kNoPage;
    }
  }

  void decide(const LayerView& view, LayerPlan& plan) override {
    if (!ranking_) return static_->decide(view, plan);
    if (view.tick >= in_->ticks()) return;
    meet(view);
    std::uint32_t free = view.free_slots;
    while (born_ < births_.size() && in_->birth[births_[born_]] <= view.tick) ++born_;
    for (const PageId p : in_->visits_at(view.tick)) residents_->last[p] = view.tick + 1;
    const std::uint32_t room = in_->capacity - in_->pinned[view.tick];
    if (view.layer == 0) ranking_->begin_step(view.tick, room, std::span(births_).first(born_));
    while (free < view.must_free && drop_coldest(view, plan)) ++free;
    free -= std::min(free, view.must_free);
    for (const PageId p : ranking_->moves_at(view.tick)) {
      const PageId id = id_[p];
      if (id == kNoPage || view.pages.in_hbm(id)) continue;
      if (free == 0 && !drop_coldest(view, plan)) break;
      free -= free > 0 ? 1 : 0;
      if (residents_->last[p] == view.tick + 1) {
        plan.install.push_back(id);  // it is being read: one crossing
      } else {
        plan.promote.push_back({id, true});
      }
      residents_->enter(p);
    }
    for (const PageId p : held_back_) residents_->enter(p);
    held_back_.clear();
    if (view.layer + 1 == view.layers) ranking_->end_step(view.step);
  }

 private:
  /// The pages of a sequence of the replay, by layer and KV head, then position.
  struct Known {
    std::vector<std::vector<PageId>> groups;
    Tick from = kNever;
    Tick to = 0;
  };

  /// Finds out which pages of the table the layer's pages are, and where they are.
  void meet(const LayerView& view) {
    std::size_t s = 0;
    std::uint32_t last = 0;
    for (std::size_t g = 0; g < view.groups.size(); ++g) {
      const GroupView& group = view.groups[g];
      if (g > 0 && group.sequence != last) ++s;
      last = group.sequence;
      while (s < sequences_.size() &&
             (view.tick - view.layer < sequences_[s].from || view.tick >= sequences_[s].to)) {
        ++s;
      }
      if (s == sequences_.size()) return;
      const auto& known = sequences_[s].groups[std::size_t{view.layer} * heads_ + group.kv_head];
      for (std::size_t i = 0; i < group.blocks.size() && i < known.size(); ++i) {
        const bool full = known[i] != kNoPage && in_->birth[known[i]] <= view.tick;
        if (full) place(known[i], group.page(i), view.pages);
      }
    }
  }

  void place(PageId p, PageId id, const PageColumns& pages) {
    if (id >= page_.size()) page_.resize(id + std::size_t{1}, kNoPage);
    page_[id] = p;
    id_[p] = id;
    if (pages.in_hbm(id)) {
      residents_->enter(p);
    } else {
      residents_->leave(p);
    }
  }

  bool drop_coldest(const LayerView& view, LayerPlan& plan) {
    for (;;) {
      const PageId v = residents_->coldest(view.tick);
      if (v == kNoPage) return false;
      const PageId id = id_[v];
      if (id == kNoPage || !view.pages.in_hbm(id)) {
        residents_->leave(v);
        continue;
      }
      if (!view.pages.evictable(id)) {
        held_back_.push_back(v);
        residents_->leave(v);
        continue;
      }
      residents_->leave(v);
      plan.drop.push_back(id);
      return true;
    }
  }

  WindowOptions options_;
  const Instance* in_ = nullptr;
  std::optional<Residents> residents_;
  std::optional<WindowRanking> ranking_;
  std::vector<Known> sequences_;
  std::vector<PageId> births_;
  std::size_t born_ = 0;
  std::vector<PageId> id_;         ///< by page of the instance: its id in the table
  std::vector<PageId> page_;       ///< and the other way
  std::vector<PageId> held_back_;  ///< cold, but guarded just now
  std::uint32_t heads_ = 1;
  std::unique_ptr<Policy> static_;
};

}  // namespace

const PolicyDescriptor& sa_window_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa-window",
      "upper estimate: pages ranked by their visits in the coming steps, window and share annealed",
      kParameters,
      {.needs_future = true, .needs_instance = true},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<SaWindow>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
