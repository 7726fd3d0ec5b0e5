// SPDX-License-Identifier: Apache-2.0
#include "placement/bounds/curve_minorant.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lehr::placement::bounds {

namespace {

struct Point {
  double x, y;
};

/// The lower hull of points that come with rising x.
std::vector<Point> lower_hull(const std::vector<Point>& points) {
  std::vector<Point> hull;
  for (const Point& p : points) {
    while (hull.size() >= 2) {
      const Point& a = hull[hull.size() - 2];
      const Point& b = hull.back();
      if ((b.y - a.y) * (p.x - a.x) < (p.y - a.y) * (b.x - a.x)) break;
      hull.pop_back();
    }
    hull.push_back(p);
  }
  return hull;
}

}  // namespace

/// `rate(x)` is amount per second. Between neighbouring samples a curve is monotonic, so that the
/// time is at least amount / larger rate there: two points on that ray. Their hull lies below the
/// true function everywhere, not only at the samples.
template <class Rate>
CurveMinorant CurveMinorant::build(const std::vector<double>& axis, double first, Rate rate) {
  constexpr int kPieces = 64;      // between two measured points
  constexpr double kFar = 0x1p60;  // past every amount; the curve is constant from its last point
  std::vector<double> samples{first};
  for (std::size_t i = 0; i < axis.size(); ++i) {
    if (i > 0) {
      for (int k = 1; k < kPieces; ++k) {
        samples.push_back(axis[i - 1] *
                          std::pow(axis[i] / axis[i - 1], static_cast<double>(k) / kPieces));
      }
    }
    samples.push_back(axis[i]);
  }
  std::erase_if(samples, [&](double x) { return x < first; });
  samples.push_back(kFar);
  std::sort(samples.begin(), samples.end());
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());

  std::vector<Point> points;
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const double best = std::max(rate(samples[i - 1]), rate(samples[i]));
    for (const double x : {samples[i - 1], samples[i]}) {
      const Point p{x, x / best};
      if (points.empty() || points.back().x < p.x) {
        points.push_back(p);
      } else {
        points.back().y = std::min(points.back().y, p.y);
      }
    }
  }
  const std::vector<Point> hull = lower_hull(points);
  CurveMinorant out;
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const double slope = (hull[i].y - hull[i - 1].y) / (hull[i].x - hull[i - 1].x);
    // A hair down, for the rounding of these few operations.
    const double base = hull[i - 1].y * (1 - 1e-12) - slope * hull[i - 1].x;
    // Where more takes less time, a line says nothing that the next one does not say as well.
    if (slope <= 0) continue;
    out.from_.push_back(hull[i - 1].x);
    out.lines_.push_back({base, slope * (1 - 1e-12)});
  }
  return out;
}

CurveMinorant CurveMinorant::of_bytes(const BandwidthCurve& curve) {
  return build(curve.sizes(), 0.0, [&](double bytes) { return curve.at(bytes, 1); });
}

CurveMinorant CurveMinorant::of_count(const BandwidthCurve& curve, Bytes size) {
  return of_count(curve, size, size);
}

CurveMinorant CurveMinorant::of_count(const BandwidthCurve& curve, Bytes least, Bytes most) {
  const auto from = static_cast<double>(least);
  const auto to = static_cast<double>(most);
  std::vector<double> sizes{from};
  for (const double size : curve.sizes()) {
    if (size > from && size < to) sizes.push_back(size);
  }
  if (to > from) sizes.push_back(to);
  // The largest of several rates that are each monotonic between two counts is largest at one of
  // them, as build() wants it: they are linear in the count's logarithm.
  return build(curve.counts(), 1.0, [&](double count) {
    double best = curve.at(from, count) / from;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      const double low = curve.at(sizes[i - 1], count);
      best = std::max(best, curve.at(sizes[i], count) / sizes[i]);
      // Between two measured sizes bytes/s are linear in the size's logarithm: where they rise
      // faster than the size itself, transfers a second have their maximum at that rate of rise.
      const double octaves = std::log2(sizes[i] / sizes[i - 1]);
      const double rise = (curve.at(sizes[i], count) - low) / octaves;
      const double turn = rise / std::numbers::ln2;
      if (turn <= low || turn >= curve.at(sizes[i], count)) continue;
      best = std::max(best, turn / (sizes[i - 1] * std::exp2((turn - low) / rise)));
    }
    return best;
  });
}

Line CurveMinorant::near(double amount) const {
  std::size_t i = lines_.size() - 1;
  while (i > 0 && from_[i] > amount) --i;
  return lines_[i];
}

}  // namespace lehr::placement::bounds
