// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// Writes the q_len new tokens of each sequence into its tail pages, at positions lengths[b] -
/// q_len .. lengths[b] - 1, and grows the boxes. Tail pages are 16-bit and writable by the device
/// (absent ones are counted and skipped). A sequence with lengths[b] < q_len is skipped.
///
/// A page that the tokens complete (q_len never passes a page, so a group has one at most) may also
/// be written to a place of its own in another format, as quantize.hpp would write it. The table
/// still names the 16-bit page: the caller changes the entry when the step has read it. Its box
/// bounds both copies from then on, so it holds on either side of that change.
struct AppendParams {
  const void* k = nullptr;                 ///< [sequences][q_len][kv_heads][head_dim]
  const void* v = nullptr;                 ///< as k
  const PageEntry* table = nullptr;        ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences], the new tokens counted
  void* boxes = nullptr;                   ///< see boxes.hpp, or null
  std::uint32_t* absent = nullptr;         ///< or null
  /// [sequences][kv_heads] addresses of slots for completed pages, 0: none for this group; or null
  const std::uint64_t* completed = nullptr;
  PageFormat to = DType::kE4m3;  ///< of completed pages
  std::uint8_t reserved[6] = {};
};
static_assert(sizeof(AppendParams) == 64 && std::is_standard_layout_v<AppendParams>);

Status check_append(const StepShape& shape, const AppendParams& params);
Status append_reference(const StepShape& shape, const AppendParams& params);
Status append_cuda(const StepShape& shape, const AppendParams& params, void* stream);

}  // namespace lehr::kernels
