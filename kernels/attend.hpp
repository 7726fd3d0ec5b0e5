// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/shape.hpp"

namespace lehr::kernels {

/// What is left of a softmax over a set of tokens: weights are d times 2^m, with logits in log2
/// units (scaled score times log2 e). m is at least the set's largest logit; an empty set is (-inf,
/// 0). The share of a page is page.d * 2^(page.m - total.m) / total.d.
struct SoftmaxPair {
  float m;
  float d;
};
static_assert(sizeof(SoftmaxPair) == 8);

/// Decode attention of one layer over the pages of each sequence and KV group. All arrays are
/// device memory for the CUDA kernel and host memory for the reference.
///
/// Dense: `selection` and `counts` null; list position i is logical page i, for
/// pages_for(lengths[b]). Selected: list position i of group (b, g) is logical page selection[(b *
/// kv_heads + g) * pitch + i], ascending and distinct, i < counts[b * kv_heads + g]. Causal: query
/// j of a sequence sees tokens 0 .. lengths[b] - q_len + j.
struct AttendParams {
  const void* q = nullptr;                   ///< [sequences][q_len][q_heads][head_dim]
  void* out = nullptr;                       ///< as q
  const PageEntry* table = nullptr;          ///< [sequences][kv_heads][max_pages], by logical page
  const std::uint32_t* lengths = nullptr;    ///< [sequences]: context, the q_len new tokens counted
  const std::uint32_t* selection = nullptr;  ///< [sequences][kv_heads][selection_pitch] or null
  const std::uint32_t* counts = nullptr;     ///< [sequences][kv_heads] or null
  SoftmaxPair* pairs = nullptr;   ///< [sequences][kv_heads][pitch][rows] by list position, or null
  SoftmaxPair* totals = nullptr;  ///< [sequences][kv_heads][rows], or null
  const std::uint64_t* installs =
      nullptr;  ///< as table: where a page that crosses a link is also written, or 0
  std::uint32_t* absent =
      nullptr;  ///< adds the number of absent pages met (they count as empty), or null
  std::uint32_t selection_pitch = 0;
  float scale = 0.0F;        ///< of q.k, not negative; 0 means 1 / sqrt(head_dim)
  float soft_cap = 0.0F;     ///< cap * tanh(s / cap); 0 means none
  std::uint32_t window = 0;  ///< a query sees only its latest `window` tokens; 0 means all
  std::uint32_t formats =
      0;  ///< bit set of DType: page formats that may occur; 0 means the shape's alone
  std::uint32_t reserved = 0;
};
static_assert(std::is_standard_layout_v<AttendParams> &&
              std::is_trivially_copyable_v<AttendParams>);
static_assert(sizeof(AttendParams) == 104 && offsetof(AttendParams, selection_pitch) == 80);

/// List positions a group: the pitch of `pairs`.
constexpr std::uint32_t list_pitch(const StepShape& shape, const AttendParams& params) {
  return params.selection != nullptr ? params.selection_pitch : shape.max_pages;
}

/// What both forms refuse at the call: shape, null or misaligned pointers, half a selection.
Status check_attend(const StepShape& shape, const AttendParams& params);

/// Refuses a selection that is not ascending or names a page past the end. Host arrays; the
/// device's own select kernel makes no other.
Status check_selection(const StepShape& shape, std::span<const std::uint32_t> lengths,
                       std::span<const std::uint32_t> selection, std::uint32_t pitch,
                       std::span<const std::uint32_t> counts);

/// The definition: float64 throughout, tokens in order of the list.
Status attend_reference(const StepShape& shape, const AttendParams& params);

/// How the CUDA kernel is laid out on the device; defaults are the measured best, 0 means choose.
struct AttendTuning {
  std::uint32_t stages = 0;  ///< tiles of 64 tokens in the ring
  std::uint32_t ctas_per_sm = 0;
  bool programmatic = false;  ///< start while the kernel before drains (programmatic launch)
};

/// Bytes of scratch that attend_cuda needs for any lengths and selections of this shape. The memory
/// must be zeroed once; each launch leaves its counters zero again.
Result<std::size_t> attend_workspace_bytes(const StepShape& shape);

/// Enqueues on `stream` (a cudaStream_t); capturable. Bit-identical output for the same pages
/// wherever they lie: splits depend on lengths and the number of SMs only, and are merged in order.
Status attend_cuda(const StepShape& shape, const AttendParams& params, const AttendTuning& tuning,
                   void* workspace, std::size_t workspace_bytes, void* stream);

}  // namespace lehr::kernels
