// SPDX-License-Identifier: Apache-2.0
#include "runtime/contents/step_layers.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace lehr::contents {

Status StepLayers::check_append(std::uint32_t layer, std::uint32_t layers) const {
  if (layer == with_kv_ && layer < layers) return {};
  return invalid(fmt::format("layer: {}, expected {}", layer, with_kv_), Reason::kOutOfRange);
}

Status StepLayers::check_attend(std::uint32_t layer) const {
  if (!started() || layer != at()) {
    return invalid(fmt::format("layer: {}, expected {}, after its K and V", layer, at()),
                   Reason::kOutOfRange);
  }
  if (closed_) return invalid(fmt::format("layer {} was attended already", layer));
  return {};
}

Status StepLayers::check_end(std::uint32_t layers) const {
  if (with_kv_ == layers) return {};
  return invalid(fmt::format("{} of {} layers have their K and V", with_kv_, layers));
}

Result<std::vector<std::uint64_t>> tokens_before(const runtime::Runtime& runtime,
                                                 std::span<const SequenceId> batch) {
  std::vector<std::uint64_t> before;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto tokens = runtime.tokens(batch[i]);
    if (!tokens) return not_found(fmt::format("no sequence {}", batch[i]));
    if (std::find(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(i), batch[i]) !=
        batch.begin() + static_cast<std::ptrdiff_t>(i)) {
      return invalid(fmt::format("sequence {} is named twice", batch[i]));
    }
    before.push_back(*tokens);
  }
  return before;
}

Status check_kv(const KvGeometry& g, Element element, std::size_t batch, std::uint64_t tokens,
                const Tensor& k, const Tensor& v) {
  LEHR_TRY(check_tensor(k, "k", batch, g.kv_heads, tokens, g.head_dim, element));
  return check_tensor(v, "v", batch, g.kv_heads, tokens, g.head_dim, element);
}

Status check_attend_call(const KvGeometry& g, Element element, const AttendCall& call,
                         std::size_t batch, std::uint32_t tokens, std::size_t pages, bool chunk) {
  LEHR_TRY(check_tensor(call.q, "q", batch, g.q_heads, tokens, g.head_dim, element));
  LEHR_TRY(check_tensor(call.out, "out", batch, g.q_heads, tokens, g.head_dim, element));
  if (!(call.scale >= 0) || std::isinf(call.scale) || !(call.soft_cap >= 0) ||
      std::isinf(call.soft_cap)) {
    return invalid("scale and soft_cap must be finite and not negative", Reason::kOutOfRange);
  }
  if (call.choice.by != ChoiceRule::By::kAll && chunk)
    return unsupported("a selection needs steps of one token; chunks read everything");
  if ((call.mass != nullptr || call.peak != nullptr) && call.code_pitch < pages) {
    return invalid(fmt::format("code_pitch: {}, a context has {} pages", call.code_pitch, pages),
                   Reason::kOutOfRange);
  }
  return {};
}

Result<std::vector<std::uint32_t>> gathered_lengths(const KvGeometry& geometry, Element element,
                                                    const runtime::Runtime& runtime,
                                                    std::uint32_t layer,
                                                    std::span<const SequenceId> ids,
                                                    const Tensor& k, const Tensor& v) {
  if (layer >= geometry.layers) {
    return invalid(fmt::format("layer: {} of {}", layer, geometry.layers), Reason::kOutOfRange);
  }
  std::uint64_t most = 0;
  std::vector<std::uint32_t> lengths;
  for (const SequenceId id : ids) {
    const auto tokens = runtime.tokens(id);
    if (!tokens) return not_found(fmt::format("no sequence {}", id));
    most = std::max(most, *tokens);
    lengths.push_back(static_cast<std::uint32_t>(*tokens));
  }
  LEHR_TRY(check_kv(geometry, element, ids.size(), most, k, v));
  return lengths;
}

}  // namespace lehr::contents
