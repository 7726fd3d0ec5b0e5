// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/base/curve.hpp"
#include "kernels/base/ids.hpp"
#include "kernels/base/units.hpp"

namespace lehr::transfer {

/// What one mover was measured to do on one link, from the call that submits pages to the
/// completion of the last: what a choice between movers goes by.
struct MoverCurve {
  std::string link;      ///< by the name that the platform profile gives it: "h2d"
  std::string mover;     ///< MoverTraits::name
  double run_pages = 1;  ///< pages in a row that follow each other at both ends
  Seconds latency = 0;   ///< of the smallest batch; the curve is without it
  BandwidthCurve curve;  ///< over page size and pages a batch

  Seconds time(double page_bytes, double pages) const {
    return latency + page_bytes * pages / curve.at(page_bytes, pages);
  }
};

/// The same of a way between two tiers of an engine.
struct MeasuredWay {
  TierId from = 0, to = 0;
  MoverCurve curve;
};

/// A batch of pages of one size, as a choice sees it.
struct BatchShape {
  double page_bytes = 0;
  double pages = 1;
  double run_pages = 1;  ///< on average
};

/// The index of the curve that promises the least time, or curves.size() when there are none. Of a
/// mover's curves the one counts whose runs are the longest that are no longer than the batch's.
/// Ties go to the first.
std::size_t fastest(std::span<const MoverCurve> curves, const BatchShape& batch);

}  // namespace lehr::transfer
