// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/ids.hpp"

namespace lehr::runtime {

/// A sequence's KV as token blocks. Blocks are shared between forks by reference count; the last
/// block may be partial: its pages are tails.
struct Sequence {
  std::uint64_t tokens = 0;
  std::vector<PageId> blocks;    ///< base ids, one a page of tokens
  std::vector<float> saliency;   ///< by group and page, as far as it was told
  PageId chunk = kNoPage;        ///< where the next blocks come from
  std::uint32_t chunk_used = 0;  ///< blocks taken from it
  std::uint16_t number = 0;
  bool suspended = false;
};

}  // namespace lehr::runtime
