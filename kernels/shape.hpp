// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/dtype.hpp"
#include "kernels/base/result.hpp"
#include "kernels/page_entry.hpp"

namespace lehr::kernels {

/// The shape that every kernel of a decode step shares: one layer of a ragged batch.
struct StepShape {
  std::uint32_t sequences = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t q_len = 1;  ///< new tokens a sequence, 1 to 8, the same for the whole batch
  std::uint32_t max_pages =
      0;  ///< logical pages a sequence: the pitch of page tables, boxes and scores
  DType dtype = DType::kF16;  ///< of Q, the output and 16-bit pages
  std::uint8_t reserved[3] = {};

  constexpr std::uint32_t ratio() const { return q_heads / kv_heads; }
  /// Query rows that share a KV group: row = query * ratio + head within the group.
  constexpr std::uint32_t rows() const { return ratio() * q_len; }
  constexpr std::size_t groups() const { return std::size_t{sequences} * kv_heads; }
  constexpr std::uint32_t pages_for(std::uint32_t tokens) const {
    return tokens / page_tokens + (tokens % page_tokens != 0 ? 1U : 0U);
  }
};
static_assert(std::is_standard_layout_v<StepShape> && std::is_trivially_copyable_v<StepShape>);
static_assert(sizeof(StepShape) == 32 && offsetof(StepShape, dtype) == 28);

inline constexpr std::uint32_t kMaxRows = 64;
inline constexpr std::uint32_t kMaxQueryLength = 8;
inline constexpr std::uint32_t kMaxPages = 1U << 16;

/// Refuses a shape that no kernel offers, naming what is offered. `sequences` may be 0: nothing is
/// done.
Status check_shape(const StepShape& shape);

/// Refuses null or misaligned memory; `what` names the argument.
Status check_pointer(const void* pointer, std::size_t alignment, const char* what);

}  // namespace lehr::kernels
