// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "placement/guards.hpp"
#include "placement/policies/table.hpp"

namespace lehr::placement {

namespace {

std::span<const ParameterInfo> parameters() {
  static const std::vector<ParameterInfo> all = [] {
    std::vector<ParameterInfo> v(table_parameters().begin(), table_parameters().end());
    v.push_back({"proposals", "proposals a step, about 30 ns each: the time box", 20000, 0, 1e6});
    v.push_back(
        {"marginal", "share of HBM near the border between staying and leaving", 0.125, 0.001, 1});
    v.push_back({"hysteresis", "share of a page's crossing that a promotion has to gain at least",
                 1, 0, 10});
    v.push_back(
        {"cooling", "of the temperature, after each hundredth of the proposals", 0.9, 0.1, 0.999});
    return v;
  }();
  return all;
}

/// Table, with its choice of pages near the border annealed once a step: which of them HBM should
/// hold, so that the layers' expected times, taken together, are least. Warm start: what `table`
/// holds.
class Annealed final : public Table {
 public:
  explicit Annealed(const Parameters& p)
      : Table(p),
        proposals_(static_cast<std::uint64_t>(p.at("proposals"))),
        share_(p.at("marginal")),
        hysteresis_(p.at("hysteresis")),
        cooling_(p.at("cooling")) {}

  void remove_pages(std::span<const PageId> pages) override {
    Table::remove_pages(pages);
    for (const PageId p : pages) guard_.forget(p);
  }

 private:
  void plan_step(const LayerView& view) override {
    if (proposals_ == 0 || cost_.empty() || view.step < 2) return;
    if (costs_.empty()) costs_.assign(layers_, cost_[0]);
    check(view);
    gather(view);
    AnnealSchedule schedule;
    // Few pages need few proposals to have been tried against each other.
    schedule.proposals = std::min<std::uint64_t>(proposals_, 64 * marginal_.size());
    schedule.cooling = cooling_;
    schedule.per_temperature = std::max<std::uint64_t>(1, schedule.proposals / 100);
    schedule.patience = std::max<std::uint64_t>(1000, schedule.proposals / 5);
    schedule.seed = context_.seed * 0x9E3779B97F4A7C15ULL + view.step;
    // A crossing takes the link from misses when it is busy; idle link time costs nothing but the
    // risk.
    const double crossing = cost_[0].price(64);
    const AnnealProblem problem{marginal_, costs_, base_,
                                crossing * (link_busy_ ? 1 + hysteresis_ : hysteresis_)};
    predicted_ = 0;
    if (!annealer_.run(problem, schedule, result_)) return;
    predicted_ = result_.after;
    std::size_t made = 0;
    for (const std::uint32_t i : result_.in) {
      const MarginalPage& m = marginal_[i];
      if (!guard_.may_cross(m.page, view.step, kVisitsAhead * static_cast<double>(m.odds)))
        continue;
      std::vector<Wanted>& list = candidates_[m.layer];
      const auto at =
          std::find_if(list.begin(), list.end(), [&](const Wanted& w) { return w.page == m.page; });
      if (at == list.end()) continue;
      Wanted w = *at;
      w.key = kComesFirst;
      list.erase(at);
      list.push_back(w);
      guard_.crossed(m.page, view.step);
      moved_.push_back(m.page);
      ++made;
    }
    for (std::size_t i = 0; i < made; ++i) keys_.set(marginal_[result_.out[i]].page, kLeavesFirst);
  }

  /// Was the last plan's prediction right? What was moved for nothing leaves again if it was not.
  void check(const LayerView& view) {
    std::erase_if(moved_, [&](PageId p) {
      const bool read = gap(p, view.step) <= 1;
      if (read) guard_.used(p);
      return read || !view.pages.in_hbm(p);
    });
    double taken = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) taken += cost_[0].at(last_misses_[l]);
    if (!(predicted_ > 0) || !(taken > 0)) return;
    undo_.clear();
    guard_.step_ended(view.step, predicted_, taken, step_reads_, view.capacity, undo_);
    for (const PageId p : undo_) {
      if (keys_.contains(p) && view.pages.evictable(p)) keys_.set(p, kLeavesFirst);
    }
  }

  void gather(const LayerView& view) {
    marginal_.clear();
    base_ = misses_;
    lowest_.clear();
    keys_.collect(static_cast<std::size_t>(share_ * keys_.size()) + 1, lowest_);
    for (const PageId p : lowest_) {
      if (view.pages.guard[p] != 0) continue;
      marginal_.push_back({odds_of(p, view), view.pages.layer[p], true, p});
    }
    const std::size_t most = marginal_.size() * 2 / layers_ + 1;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      std::size_t taken = 0;
      for (auto it = candidates_[l].rbegin(); it != candidates_[l].rend() && taken < most; ++it) {
        if (view.pages.residency[it->page] == 0 || view.pages.in_hbm(it->page) ||
            view.pages.guard[it->page] != 0)
          continue;
        marginal_.push_back({it->odds, static_cast<std::uint16_t>(l), false, it->page});
        base_[l] = std::max(0.0, base_[l] - static_cast<double>(it->odds));
        ++taken;
      }
    }
  }

  static constexpr double kLeavesFirst = -1e12;
  static constexpr double kComesFirst = 1e12;
  static constexpr double kVisitsAhead = 8;  ///< steps that a page's odds stand for

  std::uint64_t proposals_;
  double share_;
  double hysteresis_;
  double cooling_;
  Annealer annealer_;
  AnnealResult result_;
  std::vector<MissCost> costs_;
  std::vector<MarginalPage> marginal_;
  std::vector<double> base_;
  std::vector<PageId> lowest_;
  MigrationGuard guard_;
  Seconds predicted_ = 0;
  std::vector<PageId> moved_;
  std::vector<PageId> undo_;
};

}  // namespace

const PolicyDescriptor& sa_descriptor() {
  static const PolicyDescriptor descriptor{
      "sa",
      "table, its pages near the border annealed once a step against the layers' expected times",
      parameters(),
      {.needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Annealed>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
