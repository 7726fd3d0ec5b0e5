// SPDX-License-Identifier: Apache-2.0
#include "placement/mass_ledger.hpp"

#include <algorithm>

#include "kernels/base/mass.hpp"

namespace lehr::placement {

namespace {

constexpr double kOneStep = 0.957603280698573647;  // 2^(-1 / 16)
constexpr double kWeight = 1 - kOneStep;           // of a step in the average
constexpr double kPeakStep = 0.98;
constexpr double kPendingStep = 0.75;

}  // namespace

MassLedger::MassLedger() : decay_(kDecays) {
  // Products, not exp2(): no library's last bit is in the plan.
  double factor = 1;
  for (double& d : decay_) {
    d = factor;
    factor *= kOneStep;
  }
}

void MassLedger::next_step() {
  if (seen_ > 0) {
    const double rate = seen_before_ > 0 ? kWeight : 1;
    unseen_ *= kOneStep;
    seen_before_ += rate * (seen_ - seen_before_);
    peak_ = std::max(kPeakStep * peak_, on_lowered_ / seen_);
  }
  pending_ *= kPendingStep;
  seen_ = on_lowered_ = 0;
}

void MassLedger::reach(PageId page, std::size_t rows) {
  if (page < mean_.size()) return;
  rows = std::max<std::size_t>(page + std::size_t{1}, rows);
  mean_.resize(rows, 0);
  latest_.resize(rows, 0);
  last_.resize(rows, kNever);
}

double MassLedger::mean(PageId page, Step now) const {
  const Step age = now - last_[page];
  return age < kDecays ? static_cast<double>(mean_[page]) * decay_[age] : 0;
}

void MassLedger::read(const LayerView& view) {
  const auto& masses = mass_table();
  const bool told = !view.mass.empty();
  for (std::size_t i = 0; i < view.selected.size(); ++i) {
    const PageId page = view.selected[i];
    reach(page, view.pages.guard.size());
    const float mass = told ? masses[view.mass[i]] : 0;
    mean_[page] = static_cast<float>(mean(page, view.step) + kWeight * static_cast<double>(mass));
    latest_[page] = told ? mass : kUntold;
    last_[page] = view.step;
    note(page, mass, view);
  }
  for (const GroupView& group : view.groups) {
    if (!told || group.mass == nullptr || group.blocks.empty()) continue;
    const PageId last = group.page(group.blocks.size() - 1);
    const bool full = last < last_.size() && last_[last] == view.step;
    if (!full) seen_ += static_cast<double>(masses[group.mass[group.blocks.size() - 1]]);  // a tail
    if (view.groups.front().sequence != view.groups.back().sequence) read_again(view, group);
  }
}

void MassLedger::note(PageId page, float mass, const LayerView& view) {
  seen_ += static_cast<double>(mass);
  if (view.pages.is_lowered(page)) on_lowered_ += static_cast<double>(mass);
}

/// A page that sequences share is listed with the first that reads it: the masses of the others,
/// read or not, join here.
void MassLedger::read_again(const LayerView& view, const GroupView& group) {
  const auto& masses = mass_table();
  std::size_t own = group.first;
  const std::size_t end = own + group.count;
  for (std::size_t i = 0; i + 1 < group.blocks.size(); ++i) {
    const PageId page = group.page(i);
    if (own < end && view.selected[own] == page) {
      ++own;
    } else if (page < last_.size() && last_[page] == view.step) {
      const float mass = masses[group.mass[i]];
      mean_[page] += static_cast<float>(kWeight) * mass;
      latest_[page] += mass;
      note(page, mass, view);
    }
  }
}

void MassLedger::forget(std::span<const PageId> pages) {
  for (const PageId p : pages) {
    if (p < mean_.size()) mean_[p] = latest_[p] = 0;
  }
}

double MassLedger::share(PageId page, float odds, Step now) const {
  if (!known()) return 1;
  if (page >= mean_.size()) return 0;
  if (latest_[page] == kUntold) return 1;
  return std::max(mean(page, now), static_cast<double>(odds) * static_cast<double>(latest_[page])) /
         seen_before_;
}

}  // namespace lehr::placement
