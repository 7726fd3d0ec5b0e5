// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/table.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"order", "weight of the order of ticks against the steps until a page is wanted",
                  0.35, 0, 4},
    ParameterInfo{"prefetch", "least odds of a page that is promoted ahead of need; 1: none is",
                  0.01, 0.001, 1},
    ParameterInfo{"stream",
                  "odds above which pages that the idle link can bring back count the same", 0.7,
                  0.01, 1},
    ParameterInfo{"lead",
                  "how much a layer ahead counts against one that has passed, for promotions", 0.35,
                  0, 4},
    ParameterInfo{"urgent", "1: bursts of misses take promotions along where that is cheap", 1, 0,
                  1},
    ParameterInfo{"fill", "1: a miss that is kept is kept as it is read; 0: it crosses once more",
                  1, 0, 1},
    ParameterInfo{"budget",
                  "1: promotions under way are limited to what the link brings; 0: they are not", 1,
                  0, 1},
    ParameterInfo{"price",
                  "quarter powers of the price of a miss in its layer that a page's odds take", 0,
                  0, 4},
};

constexpr std::uint32_t kLongestBurst = 64;
constexpr double kUnknown = -1e6;   ///< key of pages of which nothing is known, below all others
constexpr double kMinimumGain = 2;  ///< of an urgent promotion, against its cost

}  // namespace

std::span<const ParameterInfo> table_parameters() { return kParameters; }

Table::Table(const Parameters& p)
    : order_(p.at("order")),
      least_odds_(p.at("prefetch")),
      least_star_(p.at("stream")),
      lead_(p.at("lead")),
      price_(static_cast<int>(p.at("price"))),
      fill_(p.at("fill") != 0),
      budget_(p.at("budget") != 0),
      urgent_(p.at("urgent") != 0) {}

void Table::begin(const PolicyContext& context) {
  context_ = context;
  layers_ = std::max(1U, context.layers);
  misses_.assign(layers_, 0);
  last_misses_.assign(layers_, 0);
  candidates_.assign(layers_, {});
  weight_.assign(layers_, 1);
  burst_.assign(1, 0);
  const Platform* platform = context.platform;
  const LinkId up = platform != nullptr ? platform->link(platform->home, kHbm) : kNoLink;
  if (up == kNoLink) {  // nothing to weigh, and nothing to promote over
    price_ = 0;
    least_odds_ = 1;
    return;
  }
  for (std::uint32_t n = 1; n <= kLongestBurst; ++n) {
    burst_.push_back(link_time(platform->links[up], {context.page_bytes * n, n}));
  }
  cost_.assign(1, MissCost(*platform, context.page_bytes, 0));
}

void Table::forget(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    if (p >= last_read_.size()) last_read_.resize(2 * std::size_t{p} + 1, kNeverRead);
    last_read_[p] = kNeverRead;
  }
}

void Table::add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                      const PageColumns& columns) {
  forget(pages);
  for (const PageId p : pages) {  // the latest positions first, as HBM was filled
    if (columns.in_hbm(p)) keys_.set(p, kUnknown + columns.position[p]);
  }
}

void Table::remove_pages(std::span<const PageId> pages) {
  for (const PageId p : pages) keys_.erase(p);
}

double Table::key_of(PageId page, Step step, std::uint32_t layer, const LayerView& view) const {
  const std::uint16_t sequence = view.pages.sequence[page];
  const double context = sequence < distance_.size() ? distance_[sequence] : 0;
  const double to_tail = std::max(0.0, context - view.pages.position[page]);
  const double gap = std::min<std::uint32_t>(this->gap(page, step), 100000);
  const double odds = std::min<double>(odds_of(page, view), star_) * weight_[layer];
  const double soon = std::min(odds, 1.0) + 0.06 / (2 + gap) + 0.01 / (4 + to_tail) + 1e-4;
  const double now = step + static_cast<double>(layer) / layers_;
  return -(order_ * now + 1 / soon);
}

void Table::decide(const LayerView& view, LayerPlan& plan) {
  const bool new_step = !started_ || view.step != step_;
  started_ = true;
  step_ = view.step;
  if (new_step) weigh_layers();
  forget(view.filled);
  for (const PageId p : view.selected) last_read_[p] = view.step;
  keys_.rewind();
  collect_arrivals(view);
  for (const PageId p : view.filled) {
    if (view.pages.in_hbm(p)) keys_.set(p, kUnknown);
  }
  rekey(view);
  if (new_step) {
    plan_step(view);
    step_reads_ = 0;
  }
  step_reads_ += view.selected.size();
  last_misses_[view.layer] = static_cast<std::uint32_t>(view.missed.size());

  std::uint32_t free = view.free_slots;
  while (free < view.must_free && make_room(HUGE_VAL, view, plan)) ++free;
  free = free > view.must_free ? free - view.must_free : 0;
  install_misses(view, free, plan);
  promote(view, free, plan);
  if (link_busy_ && urgent_) fill_burst(view, plan);
  for (const Wanted& w : installed_) keys_.set(w.page, w.key);
  installed_.clear();
}

/// Where the first miss of a layer costs much and further ones little, or the other way about, a
/// page is worth what its layer pays.
void Table::weigh_layers() {
  if (price_ == 0) return;
  double sum = 0;
  for (std::uint32_t l = 0; l < layers_; ++l) sum += weight_[l] = cost_[0].price(misses_[l]);
  if (!(sum > 0)) {
    weight_.assign(layers_, 1);
    return;
  }
  for (double& w : weight_) {
    const double relative = std::clamp(w * layers_ / sum, 0.25, 4.0);
    w = 1;
    for (int i = 0; i < price_; ++i) w *= std::sqrt(std::sqrt(relative));
  }
}

void Table::rekey(const LayerView& view) {
  wanted_.clear();
  for (const GroupView& group : view.groups) {
    if (group.sequence >= distance_.size()) distance_.resize(group.sequence + 1, 0);
    distance_[group.sequence] = static_cast<double>(group.blocks.size());
  }
  for (const GroupView& group : view.groups) {
    for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
      const PageId p = group.page(i);
      if (keys_.contains(p)) {
        keys_.set(p, key_of(p, view.step, view.layer, view));
      } else if (odds_of(p, view) >= least_odds_) {
        wanted_.push_back({key_of(p, view.step, view.layer, view), p, odds_of(p, view)});
      }
    }
  }
  if (least_odds_ >= 1) return;
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return a.key != b.key ? a.key < b.key : a.page > b.page;
  });
  for (Wanted& w : wanted_) w.key += lead_ - order_;
  candidates_[view.layer] = wanted_;
}

bool Table::outside(const Wanted& w, const PageColumns& columns) const {
  return columns.residency[w.page] != 0 && !columns.in_hbm(w.page) && columns.guard[w.page] == 0;
}

/// Gives up the page that is wanted last, if that is later than `key`.
bool Table::make_room(double key, const LayerView& view, LayerPlan& plan) {
  const PageId v = keys_.lowest(view.pages.guard);
  if (v == kNoPage || keys_.key(v) >= key) return false;
  keys_.erase(v);
  plan.drop.push_back(v);
  return true;
}

void Table::install_misses(const LayerView& view, std::uint32_t& free, LayerPlan& plan) {
  wanted_.clear();
  for (const PageId p : view.missed) {
    wanted_.push_back({key_of(p, view.step, view.layer, view), p, odds_of(p, view)});
  }
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return a.key != b.key ? a.key > b.key : a.page < b.page;
  });
  for (const Wanted& w : wanted_) {
    if (free > 0) {
      --free;
    } else if (!make_room(w.key, view, plan)) {
      break;  // the others are wanted even later: read in place
    }
    if (fill_) {
      plan.install.push_back(w.page);
    } else {
      plan.promote.push_back({w.page, true});
    }
    installed_.push_back(w);
  }
}

/// Promotions that have arrived. How many did says how many may be under way: the link's idle time
/// is not known, it shows.
void Table::collect_arrivals(const LayerView& view) {
  if (least_odds_ >= 1) return;
  misses_[view.layer] += (static_cast<double>(view.missed.size()) - misses_[view.layer]) / 8;
  double best = least_star_;
  const std::vector<Wanted>& left = candidates_[view.layer];
  for (auto it = left.rbegin(); it != left.rend(); ++it) {
    if (view.pages.in_hbm(it->page)) continue;
    best = std::max<double>(best, static_cast<double>(it->odds));
    break;
  }
  star_ += (std::min(1.0, best) - star_) / 32;

  for (const Wanted& w : urgent_pending_) {
    if (view.pages.in_hbm(w.page) && !keys_.contains(w.page)) keys_.set(w.page, w.key);
  }
  urgent_pending_.clear();
  std::size_t kept = 0;
  std::uint32_t arrived = 0;
  for (const PageId p : pending_) {
    if (view.pages.in_hbm(p)) {
      const std::uint32_t layer = view.pages.layer[p];
      const Step seen = layer < view.layer || view.step == 0 ? view.step : view.step - 1;
      if (!keys_.contains(p)) keys_.set(p, key_of(p, seen, layer, view));
      ++arrived;
    } else if (view.pages.guard[p] != 0) {
      pending_[kept++] = p;
    }
  }
  pending_.resize(kept);
  link_busy_ = kept > 0 && arrived == 0;
  if (!budget_) {
    depth_ = 1 + view.capacity / 16;
  } else if (kept == 0 && arrived >= depth_) {
    depth_ = std::min(2 * depth_ + 1, 1 + view.capacity / 16);
  } else if (kept > 0) {
    depth_ = arrived + arrived / 4 + 1;
  }
}

/// Pages of the next layers that are likely to be read, for pages that are wanted later.
void Table::promote(const LayerView& view, std::uint32_t free, LayerPlan& plan) {
  if (least_odds_ >= 1) return;
  for (std::uint32_t ahead = 2; ahead + 1 < layers_; ++ahead) {
    std::vector<Wanted>& list = candidates_[(view.layer + ahead) % layers_];
    while (!list.empty()) {
      if (pending_.size() >= depth_) return;
      const Wanted w = list.back();
      if (outside(w, view.pages)) {
        if (free > 0) {
          --free;
        } else if (!make_room(w.key, view, plan)) {
          break;
        }
        plan.promote.push_back({w.page, false});
        pending_.push_back(w.page);
      }
      list.pop_back();
    }
  }
}

/// A burst of few pages takes hardly longer with a few more: pages that would be missed in layers
/// of few misses come along.
void Table::fill_burst(const LayerView& view, LayerPlan& plan) {
  std::size_t n = view.missed.size();
  if (n == 0) return;
  for (std::uint32_t ahead = 1; ahead < layers_; ++ahead) {
    const std::uint32_t layer = (view.layer + ahead) % layers_;
    std::vector<Wanted>& list = candidates_[layer];
    const double price = cost_[0].price(misses_[layer]);
    while (!list.empty() && n + 1 < burst_.size()) {
      const Wanted w = list.back();
      if (outside(w, view.pages)) {
        if (static_cast<double>(w.odds) * price < kMinimumGain * (burst_[n + 1] - burst_[n])) break;
        if (!make_room(w.key, view, plan)) break;
        plan.promote.push_back({w.page, true});
        urgent_pending_.push_back(w);
        ++n;
      }
      list.pop_back();
    }
  }
}

const PolicyDescriptor& table_descriptor() {
  static const PolicyDescriptor descriptor{
      "table",
      "keeps and fetches what is likely to be read soonest, by a predictor's odds",
      kParameters,
      {.needs_odds = 1},
      [](const Parameters& p) -> std::unique_ptr<Policy> { return std::make_unique<Table>(p); },
      nullptr,
  };
  return descriptor;
}

}  // namespace lehr::placement
