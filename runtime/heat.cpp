// SPDX-License-Identifier: Apache-2.0
#include "runtime/heat.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/mass.hpp"

namespace lehr::runtime {

Heat::Heat(float half_life_steps) {
  decay_.resize(static_cast<std::size_t>(32.0F * half_life_steps) + 1);
  for (std::size_t age = 0; age < decay_.size(); ++age) {
    decay_[age] = std::exp2(-static_cast<float>(age) / half_life_steps);
  }
}

void Heat::grow(std::uint32_t rows) {
  if (rows <= last_.size()) return;
  frequency_.resize(rows);
  mass_.resize(rows);
  peak_.resize(rows);
  exposure_.resize(rows);
  last_.resize(rows);
}

void Heat::forget(PageId page) {
  frequency_[page] = mass_[page] = peak_[page] = exposure_[page] = 0;
  last_[page] = 0;
}

void Heat::read(std::span<const PageId> pages, std::span<const MassCode> mass,
                std::span<const MassCode> peak, Step step) {
  const auto& share = mass_table();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const PageId p = pages[i];
    const float d = decay(step - last_[p]);
    last_[p] = step;
    frequency_[p] = frequency_[p] * d + 1.0F;
    peak_[p] *= d;
    mass_[p] *= d;
    exposure_[p] *= d;
    if (!mass.empty()) {
      mass_[p] += share[mass[i]];
      exposure_[p] += 1.0F;
      peak_[p] = std::max(peak_[p], share[peak.empty() ? mass[i] : peak[i]]);
    }
  }
}

}  // namespace lehr::runtime
