// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/units.hpp"
#include "kernels/move.hpp"
#include "transfer/mover_choice.hpp"

namespace lehr::runtime::cuda {

/// Pages that follow each other at both ends, moved as one.
struct PageRun {
  std::uint64_t from = 0, to = 0;
  Bytes bytes = 0;
};

inline std::vector<PageRun> runs_of(std::span<const kernels::PagePair> pairs, Bytes page_bytes) {
  std::vector<PageRun> runs;
  for (const kernels::PagePair& p : pairs) {
    if (!runs.empty() && runs.back().from + runs.back().bytes == p.from &&
        runs.back().to + runs.back().bytes == p.to) {
      runs.back().bytes += page_bytes;
    } else {
      runs.push_back({p.from, p.to, page_bytes});
    }
  }
  return runs;
}

/// Which way to move pages that are ordered by a stream: a ring of bulk copies, or the copy engine
/// where what the profile says of one way promises less time by it.
class LaneMovers {
 public:
  LaneMovers() = default;
  /// Keeps the curves of the movers that a stream has.
  explicit LaneMovers(std::span<const transfer::MoverCurve> curves) {
    for (const transfer::MoverCurve& curve : curves) {
      if (curve.mover == "ring" || curve.mover == kCopyEngine) curves_.push_back(curve);
    }
  }

  bool by_copy_engine(std::size_t pages, std::size_t runs, Bytes page_bytes) const {
    if (pages == 0) return false;
    const auto count = static_cast<double>(pages);
    const std::size_t best = transfer::fastest(
        curves_, {static_cast<double>(page_bytes), count, count / static_cast<double>(runs)});
    return best < curves_.size() && curves_[best].mover == kCopyEngine;
  }

 private:
  static constexpr std::string_view kCopyEngine = "copy_engine";
  std::vector<transfer::MoverCurve> curves_;
};

}  // namespace lehr::runtime::cuda
