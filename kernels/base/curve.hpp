// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/units.hpp"

namespace lehr {

/// Bandwidth of a link or memory as a function of transfer size and number of transfers in the
/// batch: B(size, count) in bytes/s. A grid of measured points, bilinear in (log2 size, log2
/// count), constant outside the grid: it never promises more than was measured.
class BandwidthCurve {
 public:
  BandwidthCurve() = default;

  /// One number for every size and count.
  explicit BandwidthCurve(double bytes_per_second)
      : sizes_{1.0}, counts_{1.0}, values_{bytes_per_second}, peak_(bytes_per_second) {}

  /// `values[i * counts.size() + j]` belongs to sizes[i], counts[j]. All positive and finite, axes
  /// strictly rising, values.size() == sizes.size() * counts.size(); the profile reader refuses
  /// others.
  BandwidthCurve(std::vector<double> sizes, std::vector<double> counts, std::vector<double> values)
      : sizes_(std::move(sizes)), counts_(std::move(counts)), values_(std::move(values)) {
    for (const double v : values_) peak_ = std::max(peak_, v);
  }

  /// Bytes/s for `count` transfers of `size` bytes each.
  double at(double size, double count) const {
    const Place s = place(sizes_, size);
    const Place c = place(counts_, count);
    const double low = mix(value(s.index, c.index), value(s.index, c.next), c.weight);
    const double high = mix(value(s.next, c.index), value(s.next, c.next), c.weight);
    return mix(low, high, s.weight);
  }

  /// The largest value for transfers of `size` bytes, whatever their number: what a bound may
  /// assume.
  double best_for_size(double size) const {
    double best = 0;
    for (const double count : counts_) best = std::max(best, at(size, count));
    return best;
  }

  double peak() const { return peak_; }
  bool empty() const { return values_.empty(); }
  const std::vector<double>& sizes() const { return sizes_; }
  const std::vector<double>& counts() const { return counts_; }
  const std::vector<double>& values() const { return values_; }

 private:
  struct Place {
    std::size_t index, next;
    double weight;
  };

  static Place place(const std::vector<double>& axis, double x) {
    if (axis.size() == 1 || x <= axis.front()) return {0, 0, 0.0};
    if (x >= axis.back()) return {axis.size() - 1, axis.size() - 1, 0.0};
    const auto above =
        static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
    const double lo = std::log2(axis[above - 1]);
    const double hi = std::log2(axis[above]);
    return {above - 1, above, (std::log2(x) - lo) / (hi - lo)};
  }
  static double mix(double a, double b, double w) { return a + (b - a) * w; }
  double value(std::size_t size, std::size_t count) const {
    return values_[size * counts_.size() + count];
  }

  std::vector<double> sizes_;
  std::vector<double> counts_;
  std::vector<double> values_;
  double peak_ = 0;
};

}  // namespace lehr
