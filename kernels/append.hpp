// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// Writes the q_len new tokens of each sequence into its tail pages, at positions lengths[b] -
/// q_len .. lengths[b] - 1, and grows the boxes. Tail pages are 16-bit and writable by the device
/// (absent ones are counted and skipped). A sequence with lengths[b] < q_len is skipped.
struct AppendParams {
  const void* k = nullptr;                 ///< [sequences][q_len][kv_heads][head_dim]
  const void* v = nullptr;                 ///< as k
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences], the new tokens counted
  void* boxes = nullptr;                   ///< see boxes.hpp, or null
  std::uint32_t* absent = nullptr;         ///< or null
};
static_assert(sizeof(AppendParams) == 48 && std::is_standard_layout_v<AppendParams>);

Status check_append(const StepShape& shape, const AppendParams& params);
Status append_reference(const StepShape& shape, const AppendParams& params);
Status append_cuda(const StepShape& shape, const AppendParams& params, void* stream);

}  // namespace lehr::kernels
