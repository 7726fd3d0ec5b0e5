// SPDX-License-Identifier: Apache-2.0
#include "transfer/mover_choice.hpp"

namespace lehr::transfer {
namespace {

/// Whether another curve of the same mover knows runs closer to the batch's.
bool superseded(std::span<const MoverCurve> curves, const MoverCurve& curve, double run_pages) {
  for (const MoverCurve& other : curves) {
    if (other.mover == curve.mover && other.run_pages <= run_pages &&
        other.run_pages > curve.run_pages)
      return true;
  }
  return false;
}

}  // namespace

std::size_t fastest(std::span<const MoverCurve> curves, const BatchShape& batch) {
  std::size_t best = curves.size();
  Seconds least = 0;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const MoverCurve& curve = curves[i];
    if (curve.run_pages > batch.run_pages || superseded(curves, curve, batch.run_pages)) continue;
    const Seconds time = curve.time(batch.page_bytes, batch.pages);
    if (best != curves.size() && time >= least) continue;
    best = i;
    least = time;
  }
  return best;
}

}  // namespace lehr::transfer
