// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/base/curve.hpp"
#include "kernels/base/units.hpp"

namespace lehr::placement::bounds {

/// time >= base + slope * amount.
struct Line {
  Seconds base = 0;
  Seconds slope = 0;

  Seconds at(double amount) const { return base + slope * amount; }
};

/// The largest convex function below a transfer time, as lines. A bound may use any one of them;
/// the line that touches near the expected amount loses least.
class CurveMinorant {
 public:
  /// Time to move `bytes` in one piece: bytes / B(bytes, 1), in bytes > 0.
  static CurveMinorant of_bytes(const BandwidthCurve& curve);
  /// Time to move `count` transfers of `size` bytes: count * size / B(size, count), in count >= 1.
  static CurveMinorant of_count(const BandwidthCurve& curve, Bytes size);
  /// The same where the mean size is anything from `least` to `most`, whichever takes least time.
  static CurveMinorant of_count(const BandwidthCurve& curve, Bytes least, Bytes most);

  /// The line that is highest at `amount`.
  Line near(double amount) const;

 private:
  template <class Rate>
  static CurveMinorant build(const std::vector<double>& axis, double first, Rate rate);

  std::vector<double> from_;  ///< line i is highest from here on
  std::vector<Line> lines_;
};

}  // namespace lehr::placement::bounds
