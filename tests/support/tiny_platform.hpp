// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "placement/model.hpp"

namespace lehr::test {

/// A machine with round numbers, so that times can be worked out by hand: HBM 1000 B/s, 100 B/s up,
/// 50 B/s down, arithmetic 1000 flop/s, no latency, no control time; with `nvme`, a third tier at
/// 10 B/s.
inline placement::Platform tiny_platform(bool nvme = false) {
  placement::Platform p;
  p.name = "tiny";
  p.tiers = {{"hbm", 1 << 20, true}, {"host", 1 << 20, true}};
  p.links = {{"h2d", 1, 0, BandwidthCurve(100.0), 0}, {"d2h", 0, 1, BandwidthCurve(50.0), 0}};
  if (nvme) {
    p.tiers.push_back({"nvme", 1 << 20, false});
    p.links.push_back({"nvme_read", 2, 1, BandwidthCurve(10.0), 0});
    p.links.push_back({"nvme_write", 1, 2, BandwidthCurve(5.0), 0});
  }
  p.hbm = BandwidthCurve(1000.0);
  p.flops = 1000;
  return p;
}

}  // namespace lehr::test
