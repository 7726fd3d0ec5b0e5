// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/base/geometry.hpp"
#include "kernels/base/result.hpp"
#include "kernels/base/units.hpp"

namespace lehr::runtime::cuda {

struct OffloadedCacheOptions {
  KvGeometry geometry;
  std::uint32_t sequences = 1;
  std::uint32_t tokens = 0;  ///< context of each
  Bytes weights_bytes = 0;   ///< HBM read a step beside KV
  std::uint32_t steps = 16;
  std::int32_t device = 0;
};

struct OffloadedCacheResult {
  std::vector<Seconds> steps;
  Bytes bytes_per_step = 0;  ///< over the link
};

/// The rival that users have: KV lies in pinned host memory, and every step moves each layer's
/// whole cache to HBM, by the copy engine, while the layer before runs; attention is dense. One
/// graph a step, no append, no scores: nothing but copies, the weights' reader and attention.
/// Source pages are those of a window of a few layers, again and again, which the link cannot tell
/// from all.
Result<OffloadedCacheResult> run_offloaded_cache(const OffloadedCacheOptions& options);

}  // namespace lehr::runtime::cuda
