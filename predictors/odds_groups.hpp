// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace lehr::predictors {

/// Odds against outcomes, by groups of pages whose odds are alike: a group that promises what does
/// not come is found though all odds together are right, and its odds are set right alone. The past
/// counts nine tenths after a step.
class OddsGroups {
 public:
  /// Pages with logits `x` of the odds `said`, and what came: 1 was read.
  void add(const float* x, const float* said, const std::uint8_t* read, std::uint32_t n);
  void end_step();

  /// Some group promises more than `times` what came, by more than a fiftieth of all reads.
  bool misled(double times) const;

  /// Odds of pages with logits `x`, each group set right.
  void apply(const float* x, std::uint32_t n, float* odds) const;

 private:
  static constexpr std::uint32_t kGroups = 24;
  struct Group {
    double pages = 0;
    double said = 0;  ///< reads that the odds promise
    double read = 0;
  };
  std::array<Group, kGroups> groups_{};
  std::array<float, kGroups> shift_{};  ///< of the logit
};

}  // namespace lehr::predictors
