// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "placement/model.hpp"

namespace lehr::runtime {

/// A layer that ran: what it moved, and how long it took.
struct MeasuredLayer {
  placement::LayerLoad load;
  Seconds predicted = 0;
  Seconds measured = 0;
};

/// |predicted - measured| / measured.
struct ErrorQuantiles {
  double median = 0;
  double p95 = 0;
  std::size_t count = 0;
};
ErrorQuantiles relative_errors(std::span<const Seconds> predicted,
                               std::span<const Seconds> measured);

inline constexpr double kTrustedMedian = 0.10;
inline constexpr double kTrustedP95 = 0.25;
constexpr bool trusted(const ErrorQuantiles& e) {
  return e.count > 0 && e.median <= kTrustedMedian && e.p95 <= kTrustedP95;
}

/// The few figures of a profile that a run of this kind can tell.
struct Calibration {
  double hbm_scale = 1;   ///< of the profile's HBM bandwidth
  double link_scale = 1;  ///< of the bandwidth of the link from the home tier
  Seconds control_per_layer = 0;
  placement::Platform platform;  ///< the profile with the three in it
};

/// Fits them to layers: the values, over a grid of scales, with the least mean relative error, the
/// control time of each being the median of what is left. Needs at least 16 layers; with fewer, or
/// none that the HBM or the link bounds, what they cannot tell stays as it was.
Calibration calibrate(const placement::Platform& platform, std::span<const MeasuredLayer> layers);

}  // namespace lehr::runtime
