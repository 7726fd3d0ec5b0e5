// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>

#include "kernels/base/ids.hpp"

namespace lehr {

/// Share of softmax mass for each code: 2^(-c/8), and 0 for kNoMass (DESIGN §6, `log2_u8_8`).
inline const std::array<float, 256>& mass_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (std::size_t c = 0; c < 255; ++c) t[c] = std::exp2(-static_cast<float>(c) / 8.0F);
    t[kNoMass] = 0.0F;
    return t;
  }();
  return table;
}

/// The nearest code of a share in [0, 1]; shares that round past code 254 become kNoMass.
inline MassCode mass_code(float share) {
  if (!(share > 0.0F)) return kNoMass;
  const float c = std::round(-8.0F * std::log2(share));
  if (c >= 255.0F) return kNoMass;
  return c <= 0.0F ? MassCode{0} : static_cast<MassCode>(c);
}

}  // namespace lehr
