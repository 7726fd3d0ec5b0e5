// SPDX-License-Identifier: Apache-2.0
#include "placement/mass_ledger.hpp"

#include <algorithm>

#include "kernels/base/mass.hpp"

namespace lehr::placement {

namespace {

constexpr double kOneStep = 0.957603280698573647;  // 2^(-1 / 16)
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
    const double rate = seen_before_ > 0 ? 1 - kOneStep : 1;
    unseen_ *= kOneStep;
    seen_before_ += rate * (seen_ - seen_before_);
    peak_ = std::max(kPeakStep * peak_, on_lowered_ / seen_);
  }
  pending_ *= kPendingStep;
  seen_ = on_lowered_ = 0;
}

void MassLedger::read(const LayerView& view) {
  if (view.mass.empty()) return;
  const auto& masses = mass_table();
  for (std::size_t i = 0; i < view.selected.size(); ++i) {
    const PageId page = view.selected[i];
    const float mass = masses[view.mass[i]];
    if (page >= mean_.size()) {
      const std::size_t rows =
          std::max<std::size_t>(page + std::size_t{1}, view.pages.guard.size());
      mean_.resize(rows, 0);
      latest_.resize(rows, 0);
      last_.resize(rows, 0);
    }
    const Step age = view.step - last_[page];
    const double before = age < kDecays ? static_cast<double>(mean_[page]) * decay_[age] : 0;
    mean_[page] = static_cast<float>(before + (1 - kOneStep) * static_cast<double>(mass));
    latest_[page] = mass;
    last_[page] = view.step;
    seen_ += static_cast<double>(mass);
    if (view.pages.is_lowered(page)) on_lowered_ += static_cast<double>(mass);
  }
  for (const GroupView& group : view.groups) {  // tails
    if (group.mass == nullptr || group.blocks.empty()) continue;
    seen_ += static_cast<double>(masses[group.mass[group.blocks.size() - 1]]);
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
  const Step age = now - last_[page];
  const double mean = age < kDecays ? static_cast<double>(mean_[page]) * decay_[age] : 0;
  return std::max(mean, static_cast<double>(odds) * static_cast<double>(latest_[page])) /
         seen_before_;
}

}  // namespace lehr::placement
