// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/model.hpp"

namespace lehr::bench {

/// A GPU with host memory behind PCIe 5, in round numbers: what decisions cost does not hang on it.
inline placement::Platform platform() {
  placement::Platform p;
  p.name = "bench";
  p.tiers = {{"hbm", 96 * kGiB, true}, {"host", 480 * kGiB, true}};
  p.links = {{"h2d", 1, 0, BandwidthCurve(50 * kGB), 1.2e-6},
             {"d2h", 0, 1, BandwidthCurve(50 * kGB), 1.2e-6}};
  p.hbm = BandwidthCurve(4000 * kGB);
  p.flops = 1e15;
  p.home = 1;
  return p;
}

}  // namespace lehr::bench
