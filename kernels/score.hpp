// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// Scores each page of each KV group for the queries of this step: the maximum over the group's
/// query rows of q . centre + spread * |q| . half-width of the page's box, unscaled. spread 1 is
/// the box bound: no stored key of a complete page scores higher; smaller values lean on the centre
/// and bound nothing.
struct ScoreParams {
  const void* q = nullptr;                 ///< [sequences][q_len][q_heads][head_dim]
  const void* boxes = nullptr;             ///< [sequences][kv_heads][max_pages][2][head_dim]
  const std::uint32_t* lengths = nullptr;  ///< [sequences]
  float* scores = nullptr;  ///< [sequences][kv_heads][max_pages]; past the end: not written
  /// Two levels: only pages of these blocks are scored, all others get -inf. Block i of a group is
  /// pages i * block_pages and on; lists as select writes them, over coarse boxes (boxes.hpp).
  const std::uint32_t* blocks = nullptr;  ///< [sequences][kv_heads][block_pitch], or null: all
  const std::uint32_t* block_counts = nullptr;  ///< [sequences][kv_heads], or null
  float spread = 1.0F;                          ///< 0 to 1
  std::uint32_t block_pages = 0;                ///< 16, 32, 64, 128 or 256
  std::uint32_t block_pitch = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ScoreParams) == 64 && std::is_standard_layout_v<ScoreParams>);

Status check_score(const StepShape& shape, const ScoreParams& params);
/// Float64 sums, rounded up to float: the bound holds in the result too.
Status score_reference(const StepShape& shape, const ScoreParams& params);
/// Float32 sums; with spread 1 raised by the largest error they can have, so that the bound holds.
Status score_cuda(const StepShape& shape, const ScoreParams& params, void* stream);

}  // namespace lehr::kernels
