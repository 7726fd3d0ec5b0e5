// SPDX-License-Identifier: Apache-2.0
#include "placement/lowering.hpp"

#include <algorithm>

namespace lehr::placement {

namespace {

constexpr std::uint32_t kCrossings = 32;  // of a layer: at what count their times are compared

}  // namespace

void Lowering::begin(const PolicyContext& context, const LoweringOptions& options) {
  saved_ = 0;
  ledger_ = {};
  if (context.platform == nullptr || context.lowered_bytes == 0 || context.lowered_mass <= 0)
    return;
  const Platform& platform = *context.platform;
  const Link& up = platform.links[platform.link(platform.home, kHbm)];
  down_ = &platform.links[platform.link(kHbm, platform.home)];
  lowered_bytes_ = context.lowered_bytes;
  const Seconds whole = link_time(up, {context.page_bytes * kCrossings, kCrossings});
  const Seconds less = link_time(up, {lowered_bytes_ * kCrossings, kCrossings});
  const Seconds written = link_time(*down_, {lowered_bytes_ * kCrossings, kCrossings});
  if (!(less < whole)) return;
  saved_ = 1 - less / whole;
  budget_ = options.reserve * context.lowered_mass;
  least_odds_ = options.price * written / (options.steps * (whole - less));
}

void Lowering::count(PageId page, float odds, const LayerView& view, LowerHistogram& group) const {
  const double crossings = static_cast<double>(odds);
  if (crossings < least_odds_ || view.pages.in_hbm(page) || view.pages.is_lowered(page)) return;
  const double mass = ledger_.share(page, odds, view.step);
  group.add(LowerHistogram::bin(crossings / mass), crossings * saved_, mass);
}

bool Lowering::pays(PageId page, float odds, Step now, std::uint32_t least) const {
  const double crossings = static_cast<double>(odds);
  if (crossings < least_odds_ || least >= LowerHistogram::kBins) return false;
  return LowerHistogram::bin(crossings / ledger_.share(page, odds, now)) >= least;
}

std::uint32_t Lowering::begin_layer(Seconds layer_takes) const {
  if (!allowed() || !ledger_.known()) return 0;
  return static_cast<std::uint32_t>(link_bytes(*down_, layer_takes, lowered_bytes_) /
                                    lowered_bytes_);
}

bool Lowering::lower(PageId page, float odds, Step now, LayerPlan& plan) {
  const double mass = ledger_.share(page, odds, now);
  if (mass > mass_left()) return false;
  ledger_.lowered(mass);
  plan.lower.push_back(page);
  return true;
}

}  // namespace lehr::placement
