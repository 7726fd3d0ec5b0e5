// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// How many pages a group reads.
enum class SelectBy : std::uint32_t {
  kCount = 0,  ///< `count` pages
  kRatio = 1,  ///< ceil(ratio * pages)
  kMass = 2,   ///< the fewest whose share of sum exp2(score * scale * log2 e) reaches `ratio`, at
               ///< most `count`
};

/// Chooses pages by score, highest first, ties to the lower page; NaN scores count as +inf. Sinks
/// (first pages), the recent window (last pages) and the tail are always in and count towards the
/// number, which grows to hold them. The list is ascending, as attend wants it.
struct SelectParams {
  const float* scores = nullptr;           ///< [sequences][kv_heads][max_pages]
  const std::uint32_t* lengths = nullptr;  ///< [sequences]
  std::uint32_t* selection = nullptr;      ///< [sequences][kv_heads][pitch]
  std::uint32_t* counts = nullptr;         ///< [sequences][kv_heads]
  std::uint32_t pitch = 0;                 ///< room a group; a list is cut to it, forced pages kept
  SelectBy by = SelectBy::kRatio;
  std::uint32_t count = 0;
  float ratio = 0.0F;
  float scale = 0.0F;  ///< for kMass; 0 means 1 / sqrt(head_dim)
  std::uint32_t sinks = 1;
  std::uint32_t recent = 4;  ///< pages, the tail counted
  std::uint32_t reserved = 0;
};
static_assert(sizeof(SelectParams) == 64 && std::is_standard_layout_v<SelectParams>);

/// Pages that are always in, of `pages`.
constexpr std::uint32_t forced_pages(const SelectParams& params, std::uint32_t pages) {
  const std::uint32_t recent = params.recent > 1 ? params.recent : 1;
  return params.sinks + recent >= pages ? pages : params.sinks + recent;
}

Status check_select(const StepShape& shape, const SelectParams& params);
Status select_reference(const StepShape& shape, const SelectParams& params);
Status select_cuda(const StepShape& shape, const SelectParams& params, void* stream);

}  // namespace lehr::kernels
