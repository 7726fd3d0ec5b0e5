// SPDX-License-Identifier: Apache-2.0
// Which pages of a layer get keys: those near the border between staying and leaving, found by a
// scan of the layer's columns.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "placement/policies/table.hpp"

namespace lehr::placement {

namespace {

constexpr double kListed = 4;         ///< for each page that leaves
constexpr double kListedALayer = 32;  ///< besides
constexpr float kRounding = 1e-5F;    ///< of a scan's single precision, and more

}  // namespace

/// Of a page that several tiers hold, the cheapest counts. Where attention cannot read a tier, its
/// pages come by way of others: the cheapest way over the profile's links.
void Table::set_prices() {
  prices_.fill(1);
  dearest_ = 1;
  cheapest_ = lowered_price_;
  const Platform* platform = context_.platform;
  if (!priced_ || platform == nullptr) return;
  std::array<Seconds, kMaxTiers> way;
  way.fill(HUGE_VAL);
  way[kHbm] = 0;
  for (std::size_t round = 1; round < platform->tiers.size(); ++round) {
    for (const Link& link : platform->links) {
      const Seconds crossing = link_time(link, {context_.page_bytes, 1});
      way[link.from] = std::min(way[link.from], way[link.to] + crossing);
    }
  }
  const Seconds home = way[platform->home];
  if (!(home > 0) || std::isinf(home)) return;
  for (std::size_t tiers = 1; tiers < prices_.size(); ++tiers) {
    Seconds least = HUGE_VAL;
    for (std::size_t t = 1; t < kMaxTiers; ++t) {
      if ((tiers >> (t - 1) & 1) != 0) least = std::min(least, way[t]);
    }
    if (std::isinf(least)) continue;
    prices_[tiers] = least / home;
    cheapest_ = std::min(cheapest_, prices_[tiers] * lowered_price_);
  }
}

Table::Unit& Table::unit(std::uint32_t layer, std::uint32_t sequence) {
  std::vector<Unit>& units = units_[layer];
  if (sequence >= units.size()) units.resize(sequence + std::size_t{1});
  return units[sequence];
}

Table::Place Table::place_of(std::uint32_t sequence, Step step, std::uint32_t layer) const {
  const double now = step + static_cast<double>(layer) / layers_;
  return {order_ * now,
          sequence < weight_stride_ ? weight_[std::size_t{layer} * weight_stride_ + sequence] : 1.0,
          sequence < distance_.size() ? distance_[sequence] : 0};
}

/// Steps until they are wanted, of pages in HBM that may leave before the layer runs again, and of
/// those outside that are worth a place.
struct Table::Border {
  double leaves;     ///< at least
  double comes;      ///< at most
  double shift;      ///< of the keys of those that come
  ScanRule scan;     ///< finds all of both, and some others
  double outside{};  ///< odds of all pages outside, in sum
};

/// What left in the last step says what may leave in this one.
void Table::follow_border() {
  // Few more are listed than leave, and a list runs out now and then.
  if (asked_ > layers_ / 8) {
    reach_ = std::max(0.3, 0.97 * reach_);
  } else if (listed_ > kListed * left_ + kListedALayer * layers_) {
    reach_ = std::min(100.0, 1.02 * reach_);
  }
  listed_ = 0;
  asked_ = 0;
  wait_ = wait_now_;
  if (wait_now_ < kLongest) wait_now_ *= 1.02;
  if (left_ > 0) mean_wait_ = waits_ / left_;
  waits_ = left_ = 0;
}

Table::Border Table::border(const LayerView& view, const Place& place) const {
  Border b{};
  b.leaves = std::min(kLongest, reach_ * wait_);
  b.shift = lead_ - order_;
  // With room to spare every page is worth it. Else its key, which ages by `order` at most until it
  // is fetched, must be above that of the page that leaves for it.
  const bool room = view.free_slots > view.must_free;
  b.comes = room ? kLongest : std::min(kLongest, mean_wait_ + std::max(0.0, order_ + b.shift));
  b.scan.now = view.step;
  b.scan.weight = static_cast<float>(place.weight);
  b.scan.recency = kRecency;
  const double inside = (1 / b.leaves - kFloor) / cheapest_;
  b.scan.inside_most = static_cast<float>(inside * (1 + kRounding) + kRounding * kFloor);
  b.scan.outside_least = static_cast<float>((1 / b.comes - kFloor) / dearest_ * (1 - kRounding));
  b.scan.least_odds = least_odds_ < 1 ? static_cast<float>(least_odds_) : 2.0F;
  return b;
}

/// The group's full pages as runs of neighbours, kept in its unit.
void Table::list_runs(const GroupView& group, const LayerView& view) {
  const std::size_t n = group.blocks.size() - std::min<std::size_t>(1, group.blocks.size());
  if (runs_of_ != group.blocks.data()) {  // the heads of a sequence have one list of blocks
    runs_of_ = group.blocks.data();
    runs_.clear();
    for (std::size_t i = 0; i < n;) {
      auto count = static_cast<std::uint32_t>(std::min<std::size_t>(kScanPages, n - i));
      if (!side_by_side(runs_of_ + i, count)) {
        const std::uint32_t most = count;
        for (count = 1; count < most && runs_of_[i + count] == runs_of_[i] + count;) ++count;
      }
      runs_.push_back({runs_of_[i], count});
      i += count;
    }
  }
  std::vector<PageRun>& runs = unit(view.layer, group.sequence).runs;
  for (const PageRun& r : runs_) runs.push_back({r.first + group.offset, r.count});
}

void Table::rekey_run(PageId first, std::uint32_t count, const LayerView& view, const Place& place,
                      std::uint32_t sequence, Border& border) {
  static constexpr std::array<float, kScanPages> kNoOdds{};
  keys_.reach(first + count - 1);
  if (first + std::size_t{count} > last_read_.size()) {
    last_read_.resize(first + std::size_t{count}, kNeverRead);
  }
  const float* const odds = view.odds.empty() ? nullptr : view.odds.data() + first;
  ScanColumns columns{odds != nullptr ? odds : kNoOdds.data(), keys_.inside().data() + first,
                      last_read_.data() + first};
  struct {
    std::array<float, kScanPages> odds;
    std::array<std::uint8_t, kScanPages> inside;
    std::array<Step, kScanPages> last_read;
  } short_run;
  if (count < kScanPages) {  // filled up with pages that are neither
    short_run.odds.fill(1);
    short_run.inside.fill(1);
    short_run.last_read.fill(view.step);
    std::copy_n(columns.odds, count, short_run.odds.begin());
    std::copy_n(columns.inside, count, short_run.inside.begin());
    std::copy_n(columns.last_read, count, short_run.last_read.begin());
    columns = {short_run.odds.data(), short_run.inside.data(), short_run.last_read.data()};
  }
  // What a place near the tail adds is for the scan the same for the whole run: no more than the
  // last page has, no less than the first.
  const auto near_tail = [&](PageId page) {
    const std::uint32_t position = view.pages.position[page];
    return static_cast<float>(near_tail_[place.context > position ? place.context - position : 0]);
  };
  ScanRule rule = border.scan;
  rule.inside_most -= near_tail(first) * (1 - kRounding);
  rule.outside_least -= near_tail(first + count - 1) * (1 + kRounding);
  const ScanFound found = scan_pages(columns, rule);
  border.outside += static_cast<double>(found.odds_outside);
  std::uint64_t pages = found.pages;
  if (count < kScanPages) pages &= (std::uint64_t{1} << count) - 1;
  for (; pages != 0; pages &= pages - 1) {
    const PageId p = first + static_cast<PageId>(std::countr_zero(pages));
    const double key = key_of(p, view.step, place, view);
    const double wait = -key - place.time;
    if (keys_.contains(p)) {
      if (wait < border.leaves) continue;
      keys_.list(p, view.layer, sequence, key);
      listed_ += 1;
    } else if (wait <= border.comes) {
      const float odds_of_page = odds_of(p, view);
      if (odds_of_page >= least_odds_) wanted_.push_back({key + border.shift, p, odds_of_page});
    }
  }
}

void Table::rekey(const LayerView& view) {
  wanted_.clear();
  double outside = 0;
  for (const GroupView& group : view.groups) {
    if (group.sequence >= distance_.size()) distance_.resize(group.sequence + 1, 0);
    distance_[group.sequence] = static_cast<std::uint32_t>(group.blocks.size());
    while (near_tail_.size() <= group.blocks.size())
      near_tail_.push_back(tail_odds(near_tail_.size()));
  }
  keys_.begin_layer(view.layer);
  runs_of_ = nullptr;
  std::uint32_t before = kNoSequence;
  Place place{};
  Border limits{};
  for (const GroupView& group : view.groups) {
    Unit& u = unit(view.layer, group.sequence);
    if (group.sequence != before) {
      before = group.sequence;
      place = place_of(group.sequence, view.step, view.layer);
      limits = border(view, place);
      if (u.tick != view.tick || u.runs.empty()) {
        u.runs.clear();
        keys_.renew(view.layer, group.sequence, -(place.time + limits.leaves));
      }
      u.tick = view.tick;
      u.step = view.step;
      u.place = place;
    }
    const std::size_t from = u.runs.size();
    list_runs(group, view);
    for (std::size_t r = from; r < u.runs.size(); ++r) {
      rekey_run(u.runs[r].first, u.runs[r].count, view, place, group.sequence, limits);
    }
    outside += std::exchange(limits.outside, 0.0);
  }
  keys_.end_layer();
  expected_[view.layer] = outside;
  if (least_odds_ < 1) candidates_[view.layer].swap_in(wanted_);
}

/// An eighth of the unit's pages more, the lowest.
void Table::list_more(std::uint32_t layer, std::uint32_t sequence, const LayerView& view) {
  ++asked_;
  const Unit& u = unit(layer, sequence);
  more_.clear();
  for (const PageRun& run : u.runs) {
    for (PageId p = run.first; p < run.first + run.count; ++p) {
      if (!keys_.contains(p) || keys_.listed(p, layer, sequence)) continue;
      more_.push_back({key_of(p, u.step, u.place, view), p});
    }
  }
  const std::size_t count = std::max(kLeastMore, more_.size() / 8);
  double bound = ColdKeys::kAll;
  if (more_.size() > count) {
    const auto end = more_.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(more_.begin(), end, more_.end());
    bound = std::max_element(more_.begin(), end)->first;
    more_.erase(std::partition(end, more_.end(), [=](const auto& m) { return m.first <= bound; }),
                more_.end());
  }
  for (const auto& [key, page] : more_) keys_.list_late(page, layer, sequence, key);
  keys_.raise(layer, sequence, bound);
}

}  // namespace lehr::placement
