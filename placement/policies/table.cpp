// SPDX-License-Identifier: Apache-2.0
#include "placement/policies/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace lehr::placement {

namespace {

constexpr std::array kParameters{
    ParameterInfo{"order", "weight of the order of ticks against the steps until a page is wanted",
                  0.35, 0, 4},
    ParameterInfo{"prefetch", "least odds of a page that is promoted ahead of need; 1: none is",
                  0.003, 0.001, 1},
    ParameterInfo{"lead",
                  "how much a layer ahead counts against one that has passed, for promotions", 0.1,
                  0, 4},
    ParameterInfo{"gain",
                  "what a burst that takes promotions along must save, against what they add to it",
                  1, 0.01, 100},
    ParameterInfo{"ahead", "layers ahead that a burst of misses fetches for; 0: none", 6, 0, 256},
    ParameterInfo{"fill", "1: a miss that is kept is kept as it is read; 0: it crosses once more",
                  1, 0, 1},
    ParameterInfo{"budget",
                  "1: promotions under way are limited to what the link brings; 0: they are not", 1,
                  0, 1},
    ParameterInfo{"guards", "1: promotions stop while predictions are wrong or HBM thrashes", 1, 0,
                  1},
    ParameterInfo{"price", "1: a miss counts for what the tier that holds the page makes it cost",
                  1, 0, 1},
    ParameterInfo{"sinks", "first pages of a context, which leave only if nothing else can", 1, 0,
                  65536},
};

constexpr std::uint32_t kLongestBurst = 128;
constexpr double kUnknown = -1e6;  ///< key of pages of which nothing is known, below all others
constexpr double kDoubt = 8;       ///< pages that have to be promoted before what came of it counts
constexpr double kLately = 0.97;
constexpr double kSlack = 1.0 / 8;  ///< by how much hidden time may change before costs follow

}  // namespace

std::span<const ParameterInfo> table_parameters() { return kParameters; }

Table::Table(const Parameters& p)
    : guarded_(p.at("guards") != 0),
      order_(p.at("order")),
      least_odds_(p.at("prefetch")),
      lead_(p.at("lead")),
      gain_(p.at("gain")),
      ahead_(static_cast<std::uint32_t>(p.at("ahead"))),
      fill_(p.at("fill") != 0),
      budget_(p.at("budget") != 0),
      priced_(p.at("price") != 0),
      sinks_(static_cast<std::uint32_t>(p.at("sinks"))) {}

void Table::begin(const PolicyContext& context) {
  context_ = context;
  layers_ = std::max(1U, context.layers);
  expected_.assign(layers_, 0);
  candidates_.assign(layers_, {});
  carried_.assign(layers_, 0);
  units_.assign(layers_, {});
  keys_.reset(layers_);
  recent_.resize(kGaps);
  for (std::uint32_t n = 0; n < kGaps; ++n) recent_[n] = recent_odds(n);
  near_tail_.assign(1, tail_odds(0));
  burst_.assign(1, 0);
  set_prices();
  const Platform* platform = context.platform;
  const LinkId up = platform != nullptr ? platform->link(platform->home, kHbm) : kNoLink;
  if (up == kNoLink) {  // nothing to weigh, and nothing to promote over
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
    keys_.reach(p);
  }
}

/// Of a page of which nothing is known yet: the latest positions stay longest.
double Table::key_unknown(PageId page, const PageColumns& columns) const {
  const std::uint32_t position = columns.position[page];
  return position < sinks_ ? kSink : kUnknown + position;
}

void Table::add_pages(std::span<const PageId> pages, std::span<const Tick> /*first_use*/,
                      const PageColumns& columns) {
  forget(pages);
  for (const PageId p : pages) {  // the latest positions first, as HBM was filled
    if (columns.in_hbm(p)) set_key(p, key_unknown(p, columns), columns);
  }
}

void Table::remove_pages(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    keys_.erase(p);
    guard_.forget(p);
  }
}

void Table::decide(const LayerView& view, LayerPlan& plan) {
  const bool new_step = !started_ || view.step != step_;
  started_ = true;
  step_ = view.step;
  if (new_step) {
    weigh_misses(view);
    follow_border();
  }
  forget(view.filled);
  for (const PageId p : view.selected) {
    last_read_[p] = view.step;
    if (guard_.used(p)) delivered_ += 1;
  }
  keys_.rewind();
  collect_arrivals(view);
  for (const PageId p : view.filled) {
    if (view.pages.in_hbm(p)) set_key(p, key_unknown(p, view.pages), view.pages);
  }
  if (new_step) check_prediction(view);
  if (view.planned) {
    rekey(view);
    note_layer(view);
  }
  if (new_step) plan_step(view);
  step_reads_ += view.selected.size();
  const auto missed = static_cast<double>(view.missed.size());
  misses_step_ += missed;
  if (!cost_.empty()) taken_ += cost_[0].at(missed);

  std::uint32_t free = view.free_slots;
  roll_back(view, free, plan);
  while (free < view.must_free && make_room(HUGE_VAL, view, plan)) ++free;
  free = free > view.must_free ? free - view.must_free : 0;
  install_misses(view, free, plan);
  promote(view, free, plan);
  if (link_busy_) fill_burst(view, plan);
  for (const Wanted& w : installed_) set_key(w.page, w.key, view.pages);
  installed_.clear();
  plan_rest(view, plan);
}

/// What the layers' other work hides is free, and costs follow it.
void Table::weigh_misses(const LayerView& view) {
  if (cost_.empty()) return;
  const Platform& platform = *context_.platform;
  const Bytes hidden = view.from_tier[platform.home].hidden_bytes;
  const LinkLoad load{hidden, static_cast<std::uint32_t>(hidden / context_.page_bytes)};
  const Link& up = platform.links[platform.link(platform.home, kHbm)];
  const Seconds beside = hidden >= context_.page_bytes ? link_time(up, load) : 0;
  if (std::abs(beside - beside_) > kSlack * beside_) {
    beside_ = beside;
    cost_[0] = MissCost(platform, context_.page_bytes, beside);
    for (std::uint32_t n = 0; n < burst_.size(); ++n) {
      burst_[n] = std::max(beside, link_time(up, {context_.page_bytes * n, n}));
    }
  }
}

/// Was the last step's time as foretold? What was promoted for nothing leaves again if it was not.
void Table::check_prediction(const LayerView& view) {
  if (cost_.empty() || view.odds.empty()) return;
  const Seconds control = context_.platform->control_per_layer * layers_;
  if (guarded_) hold_against(view, control);
  expected_misses_ = expected_time_ = 0;
  for (const double misses : expected_) {
    expected_misses_ += misses;
    expected_time_ += cost_[0].at(bias_ * misses);
  }
  predicted_ = control + time_bias_ * expected_time_;
}

/// The step that ended, against what was expected of it.
void Table::hold_against(const LayerView& view, Seconds control) {
  // A predictor whose odds are off says so: that is a wrong prediction, whatever the step took.
  if (view.forecast.paused || (predicted_ > 0 && taken_ > 0)) {
    const Seconds foretold = view.forecast.paused ? 0 : predicted_;
    guard_.step_ended(view.step, foretold, taken_ + control, step_reads_, view.capacity, undo_);
  }
  // Recalibration, the faster after a wrong prediction: expected misses and their time against
  // those that came. Misses come together, so that the two differ.
  const double rate = guard_.open() ? 1.0 / 8 : 1.0 / 2;
  const auto follow = [rate](double& bias, double came, double expected) {
    if (expected > 0) bias += rate * (std::clamp(came / expected, 0.1, 10.0) - bias);
  };
  follow(bias_, misses_step_, expected_misses_);
  follow(time_bias_, taken_, expected_time_);
  taken_ = 0;
  misses_step_ = 0;
  step_reads_ = 0;
  promised_ *= kLately;
  delivered_ *= kLately;
}

/// What was promoted on the word of a wrong prediction and has not been read goes at once.
void Table::roll_back(const LayerView& view, std::uint32_t& free, LayerPlan& plan) {
  for (const PageId p : undo_) {
    if (!keys_.contains(p) || !view.pages.evictable(p)) continue;
    give_up(p, view, plan);
    ++free;
  }
  undo_.clear();
}

void Table::give_up(PageId page, const LayerView& view, LayerPlan& plan) {
  keys_.erase(page);
  dearest_ = std::max(dearest_, prices_[view.pages.residency[page] >> 1]);
  expected_[view.pages.layer[page]] += static_cast<double>(odds_of(page, view));
  plan.drop.push_back(page);
}

bool Table::outside(const Wanted& w, const PageColumns& columns) const {
  return columns.residency[w.page] != 0 && !columns.in_hbm(w.page) && columns.guard[w.page] == 0;
}

/// The page that is wanted last and may leave.
ColdKeys::Lowest Table::lowest(const LayerView& view) {
  return keys_.lowest(view.pages.guard, [&](std::uint32_t layer, std::uint32_t sequence) {
    list_more(layer, sequence, view);
  });
}

/// Gives up the page that is wanted last, if that is later than `key`.
bool Table::make_room(double key, const LayerView& view, LayerPlan& plan) {
  const ColdKeys::Lowest v = lowest(view);
  if (v.page == kNoPage || v.key >= key) return false;
  const double now = order_ * (view.step + static_cast<double>(view.layer) / layers_);
  const double wait = std::clamp(-v.key - now, kSoonest, kUnread);
  wait_now_ = std::min(wait_now_, wait);
  waits_ += wait;
  left_ += 1;
  give_up(v.page, view, plan);
  return true;
}

void Table::install_misses(const LayerView& view, std::uint32_t& free, LayerPlan& plan) {
  wanted_.clear();
  for (const PageId p : view.missed) {
    wanted_.push_back({key_of(p, view.step, view.layer, view), p, odds_of(p, view)});
  }
  if (free == 0) {  // what is wanted even later than all that is here needs no order
    const ColdKeys::Lowest last = lowest(view);
    const double needed = last.page == kNoPage ? HUGE_VAL : last.key;
    std::erase_if(wanted_, [=](const Wanted& w) { return w.key <= needed; });
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
    expect_less(view.layer, w.odds);
    installed_.push_back(w);
  }
}

/// Promotions that have arrived. How many did says how many may be under way: the link's idle time
/// is not known, it shows.
void Table::collect_arrivals(const LayerView& view) {
  if (least_odds_ >= 1) return;
  for (const Wanted& w : urgent_pending_) {
    if (view.pages.in_hbm(w.page) && !keys_.contains(w.page)) set_key(w.page, w.key, view.pages);
  }
  urgent_pending_.clear();
  std::size_t kept = 0;
  std::uint32_t arrived = 0;
  for (const PageId p : pending_) {
    if (view.pages.in_hbm(p)) {
      const std::uint32_t layer = view.pages.layer[p];
      const Step seen = layer < view.layer || view.step == 0 ? view.step : view.step - 1;
      if (!keys_.contains(p)) set_key(p, key_of(p, seen, layer, view), view.pages);
      ++arrived;
    } else if (view.pages.guard[p] != 0) {
      pending_[kept++] = p;
    }
  }
  if (!pending_.empty()) {
    double& carried = carried_[(view.layer + layers_ - 1) % layers_];
    carried += (static_cast<double>(arrived) - carried) / 8;
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

void Table::expect_promotions(const LayerView& view, PromotionProblem& problem) {
  constexpr std::size_t kMost = 48;  // pages a layer
  problem.layers.resize(layers_ - 1);
  problem.cost = cost_.data();
  // A crossing less for a step, by the odds of what leaves, in the time of a layer.
  const double leaves = 1 / std::clamp(mean_wait_, 1.0, 1e6);
  const Seconds crossing = view.from_tier[view.home].seconds_per_page;
  problem.hold = leaves * crossing / layers_;
  for (std::uint32_t i = 0; i + 1 < layers_; ++i) {
    const std::uint32_t layer = (view.layer + 1 + i) % layers_;
    PromotionProblem::Layer& out = problem.layers[i];
    out.misses = bias_ * expected_[layer];
    out.idle_pages = carried_[layer];  // the link's idle time is not known, it shows
    out.odds.clear();
    Candidates& list = candidates_[layer];
    for (std::size_t n = 0; n < list.size() && out.odds.size() < kMost; ++n) {
      const Wanted& w = list.at(n);
      if (outside(w, view.pages)) out.odds.push_back(static_cast<double>(w.odds));
    }
  }
}

/// Pages of the next layers that are likely to be read, for pages that are wanted later.
void Table::promote(const LayerView& view, std::uint32_t free, LayerPlan& plan) {
  if (least_odds_ >= 1 || (guarded_ && !guard_.open())) return;
  for (std::uint32_t ahead = 2; ahead + 1 < layers_; ++ahead) {
    const std::uint32_t layer = (view.layer + ahead) % layers_;
    if (!leads_.empty() && ahead > leads_[layer]) continue;
    Candidates& list = candidates_[layer];
    while (!list.empty()) {
      if (pending_.size() >= depth_) return;
      const Wanted w = list.at(0);
      if (outside(w, view.pages) && may_promote(w, view.step)) {
        if (free > 0) {
          --free;
        } else if (!make_room(w.key, view, plan)) {
          break;
        }
        plan.promote.push_back({w.page, false});
        pending_.push_back(w.page);
        guard_.crossed(w.page, view.step);
        promised_ += static_cast<double>(w.odds);
      }
      list.pop();
    }
  }
}

/// How many of a layer's likely pages a burst of `n` misses should take along: few may save
/// nothing where more would save the layer its own burst.
std::size_t Table::worth_fetching(std::uint32_t layer, std::size_t n, const LayerView& view) {
  Candidates& list = candidates_[layer];
  const double expected = bias_ * expected_[layer];
  const Seconds now = cost_[0].at(expected);
  // Odds of promoted pages have promised more than came, or less.
  const double trust = std::clamp((delivered_ + kDoubt) / (promised_ + kDoubt), 0.1, 1.0);
  Seconds best = 0;
  double odds = 0;
  std::size_t count = 0;
  std::size_t take = 0;
  for (std::size_t i = 0; i < list.size() && n + count + 1 < burst_.size(); ++i) {
    const Wanted& w = list.at(i);
    if (!outside(w, view.pages)) continue;
    ++count;
    odds += trust * static_cast<double>(w.odds);
    const Seconds saved =
        now - cost_[0].at(std::max(0.0, expected - odds)) - gain_ * (burst_[n + count] - burst_[n]);
    if (saved <= best) continue;
    best = saved;
    take = count;
  }
  return take;
}

/// A burst of few pages takes hardly longer with a few more: pages that would be missed in the next
/// layers come along.
void Table::fill_burst(const LayerView& view, LayerPlan& plan) {
  std::size_t n = view.missed.size();
  if (n == 0 || (guarded_ && !guard_.open())) return;
  const std::uint32_t last = std::min(ahead_, layers_ - 1);
  for (std::uint32_t ahead = 1; ahead <= last; ++ahead) {
    const std::uint32_t layer = (view.layer + ahead) % layers_;
    Candidates& list = candidates_[layer];
    for (std::size_t take = worth_fetching(layer, n, view); take > 0; list.pop()) {
      const Wanted w = list.at(0);
      if (!outside(w, view.pages)) continue;
      if (!make_room(w.key, view, plan)) break;
      plan.promote.push_back({w.page, true});
      guard_.crossed(w.page, view.step);
      promised_ += static_cast<double>(w.odds);
      urgent_pending_.push_back(w);
      expect_less(layer, w.odds);
      ++n;
      --take;
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
