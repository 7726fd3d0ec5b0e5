// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/ids.hpp"
#include "kernels/base/result.hpp"
#include "placement/policy.hpp"

namespace lehr::placement {

/// Requests as they reach a prefix cache: request i reads blocks[first[i]] up to blocks[first[i +
/// 1]]. Block ids are dense, each names its content and all that comes before it.
struct RequestBlocks {
  std::span<const std::uint64_t> first;  ///< requests + 1 offsets, rising from 0 to blocks.size()
  std::span<const PageId> blocks;        ///< below `distinct`
  std::span<const std::uint64_t>
      input_length;  ///< tokens, per request; the last block may be partly filled
  std::uint32_t distinct = 0;
  std::uint32_t block_tokens = 0;

  std::size_t requests() const { return input_length.size(); }
};

/// Which blocks may leave: any, or, as in a radix cache, only those without a resident descendant.
enum class EvictForm : std::uint8_t { kAny, kLeaf };

struct BlockCount {
  std::uint64_t blocks = 0;
  std::uint64_t tokens = 0;
};

struct BlockHits {
  BlockCount visits;
  BlockCount hits;         ///< each block for itself
  BlockCount prefix_hits;  ///< only if all before it in the request hit: what saves a prefill
};

struct BlockCacheRun {
  std::uint32_t capacity = 0;  ///< blocks
  BlockHits all;
  BlockHits last_half;  ///< of the later half of the requests: caches warm
};

/// Replays the requests through one cache for each capacity (in blocks, at least 1). The descriptor
/// must offer a Replacement; one that needs the future is given it. Refused: a descriptor without a
/// Replacement, parameters out of range, offsets or ids that contradict each other.
Result<std::vector<BlockCacheRun>> replay_blocks(const RequestBlocks& trace,
                                                 const PolicyDescriptor& policy,
                                                 const Parameters& parameters,
                                                 std::span<const std::uint32_t> capacities,
                                                 EvictForm form);

}  // namespace lehr::placement
