// SPDX-License-Identifier: Apache-2.0
#include "kernels/shape.hpp"

#include <fmt/format.h>

namespace lehr::kernels {

Status check_shape(const StepShape& s) {
  if (s.head_dim != 64 && s.head_dim != 128 && s.head_dim != 256) {
    return unsupported(fmt::format("head_dim {}; offered are 64, 128 and 256", s.head_dim));
  }
  if (s.page_tokens != 16 && s.page_tokens != 32 && s.page_tokens != 64) {
    return unsupported(fmt::format("page_tokens {}; offered are 16, 32 and 64", s.page_tokens));
  }
  if (s.dtype != DType::kF16 && s.dtype != DType::kBf16) {
    return unsupported(
        fmt::format("type {} for queries and output; offered are fp16 and bf16", name(s.dtype)));
  }
  if (s.kv_heads == 0 || s.q_heads == 0 || s.q_heads % s.kv_heads != 0) {
    return invalid(fmt::format("{} query heads over {} KV heads; a positive multiple is expected",
                               s.q_heads, s.kv_heads));
  }
  if (s.q_len == 0 || s.q_len > kMaxQueryLength) {
    return unsupported(fmt::format("q_len {}; offered are 1 to {}", s.q_len, kMaxQueryLength));
  }
  if (s.ratio() > kMaxRows || s.rows() > kMaxRows) {
    return unsupported(
        fmt::format("{} query heads a KV head times q_len {}; at most {} rows share a group",
                    s.ratio(), s.q_len, kMaxRows));
  }
  if (s.max_pages == 0 || s.max_pages > kMaxPages) {
    return unsupported(fmt::format("max_pages {}; offered are 1 to {}", s.max_pages, kMaxPages));
  }
  constexpr std::size_t kMaxGroups = std::size_t{1} << 20;
  if (s.groups() > kMaxGroups) {
    return unsupported(fmt::format("{} sequences of {} KV heads; at most {} groups a launch",
                                   s.sequences, s.kv_heads, kMaxGroups));
  }
  return {};
}

Status check_pointer(const void* pointer, std::size_t alignment, const char* what) {
  if (pointer == nullptr) return invalid(fmt::format("{} is null", what));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    return invalid(fmt::format("{} is not aligned to {} bytes", what, alignment));
  }
  return {};
}

}  // namespace lehr::kernels
