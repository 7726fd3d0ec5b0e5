// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/prediction.hpp"

#include <algorithm>
#include <cmath>

namespace lehr::runtime {

namespace {

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const std::size_t at = std::max<std::size_t>(rank, 1) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

/// Every scale of a grid is tried: a model of maxima has no gradient worth following.
std::vector<double> scales() {
  std::vector<double> out;
  for (int i = 15; i <= 65; ++i) out.push_back(i / 50.0);
  return out;
}

BandwidthCurve scaled(const BandwidthCurve& curve, double scale) {
  std::vector<double> values = curve.values();
  for (double& v : values) v *= scale;
  return {curve.sizes(), curve.counts(), std::move(values)};
}

/// A layer's time but for control, at other bandwidths. Times of the model are bytes over bandwidth
/// plus latency; that the latency is scaled too does no harm to a fit.
struct Terms {
  double hbm, compute, link, other, stall, measured;

  double at(double hbm_scale, double link_scale) const {
    return std::max({hbm / hbm_scale, compute, link / link_scale, other}) + stall;
  }
};

}  // namespace

ErrorQuantiles relative_errors(std::span<const Seconds> predicted,
                               std::span<const Seconds> measured) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < std::min(predicted.size(), measured.size()); ++i) {
    if (measured[i] > 0) errors.push_back(std::abs(predicted[i] - measured[i]) / measured[i]);
  }
  ErrorQuantiles out;
  out.count = errors.size();
  out.median = quantile(errors, 0.5);
  out.p95 = quantile(errors, 0.95);
  return out;
}

Calibration calibrate(const placement::Platform& platform, std::span<const MeasuredLayer> layers) {
  Calibration best;
  best.platform = platform;
  best.control_per_layer = platform.control_per_layer;
  if (layers.size() < 16) return best;
  const LinkId up = platform.link(platform.home, kHbm);
  std::vector<Terms> terms;
  for (const MeasuredLayer& l : layers) {
    if (l.measured <= 0) continue;
    const placement::LayerTime t = placement::layer_time(platform, l.load);
    double other = 0;
    for (std::size_t i = 0; i < t.link.size(); ++i) {
      if (i != up) other = std::max(other, t.link[i]);
    }
    terms.push_back({t.hbm, t.compute, t.link[up], other, t.stall, l.measured});
  }
  if (terms.empty()) return best;
  const std::vector<double> grid = scales();
  std::vector<double> left(terms.size());
  double least = -1;
  for (const double hbm : grid) {
    for (const double link : grid) {
      for (std::size_t i = 0; i < terms.size(); ++i)
        left[i] = terms[i].measured - terms[i].at(hbm, link);
      std::vector<double> sorted = left;
      const double control = std::max(0.0, quantile(sorted, 0.5));
      double error = 0;
      for (std::size_t i = 0; i < terms.size(); ++i)
        error += std::abs(left[i] - control) / terms[i].measured;
      // Of equals the one that changes the profile least: what no layer depends on stays.
      error += 1e-6 * static_cast<double>(terms.size()) * (std::abs(hbm - 1) + std::abs(link - 1));
      if (least >= 0 && error >= least) continue;
      least = error;
      best.hbm_scale = hbm;
      best.link_scale = link;
      best.control_per_layer = control;
    }
  }
  best.platform.control_per_layer = best.control_per_layer;
  best.platform.hbm = scaled(platform.hbm, best.hbm_scale);
  best.platform.links[up].curve = scaled(platform.links[up].curve, best.link_scale);
  return best;
}

}  // namespace lehr::runtime
