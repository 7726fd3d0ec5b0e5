// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/step_args.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace lehr::capi {

using contents::ChoiceRule;
using contents::Element;
using contents::Tensor;

namespace {

constexpr std::int32_t kCpu = 1;  ///< DLPack's
constexpr std::int32_t kCuda = 2;
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

Result<Element> element_of(const lehr_tensor& t, const char* what) {
  if (t.dtype_lanes == 1 && t.dtype_code == 2 && t.dtype_bits == 32) return Element::kF32;
  if (t.dtype_lanes == 1 && t.dtype_code == 2 && t.dtype_bits == 16) return Element::kF16;
  if (t.dtype_lanes == 1 && t.dtype_code == 4 && t.dtype_bits == 16) return Element::kBf16;
  return Error{Code::kUnsupported, Reason::kLayoutMismatch,
               fmt::format("{}: dtype code {}, {} bits, {} lanes; offered are f32, f16 and bf16",
                           what, t.dtype_code, t.dtype_bits, t.dtype_lanes)};
}

Result<ChoiceRule> choice_of(const lehr_attend_request& r) {
  ChoiceRule rule;
  rule.amount = r.select_amount;
  if (r.select_sinks != 0) rule.sinks = r.select_sinks;
  if (r.select_recent != 0) rule.recent = r.select_recent;
  switch (r.select_by) {
    case LEHR_SELECT_ALL:
      rule.by = ChoiceRule::By::kAll;
      return rule;
    case LEHR_SELECT_COUNT:
      rule.by = ChoiceRule::By::kCount;
      if (rule.amount >= 1) return rule;
      return invalid(fmt::format("select_amount: {} pages, expected at least 1", rule.amount),
                     Reason::kOutOfRange);
    case LEHR_SELECT_RATIO:
      rule.by = ChoiceRule::By::kRatio;
      break;
    case LEHR_SELECT_MASS:
      rule.by = ChoiceRule::By::kMass;
      break;
    default:
      return invalid(fmt::format("select_by: {}, expected LEHR_SELECT_*", r.select_by),
                     Reason::kOutOfRange);
  }
  if (!(rule.amount > 0 && rule.amount <= 1)) {
    return invalid(fmt::format("select_amount: {}, expected a share in (0, 1]", rule.amount),
                   Reason::kOutOfRange);
  }
  return rule;
}

}  // namespace

Result<Tensor> tensor_of(const TensorPlace& place, const lehr_tensor* given, const char* what) {
  LEHR_ASSIGN(const lehr_tensor t, read_struct(given, what));
  const bool on_device = place.gpu.has_value();
  if (on_device && t.device_type == kCuda && t.device_id != *place.gpu) {
    return unsupported(
        fmt::format("{}: on GPU {}, the runtime is on GPU {}", what, t.device_id, *place.gpu));
  }
  if (t.device_type != (on_device ? kCuda : kCpu)) {
    return unsupported(fmt::format("{}: device_type {}; this machine reads {}", what, t.device_type,
                                   on_device ? "CUDA memory (2)" : "CPU memory (1)"));
  }
  if (t.ndim != 4) {
    return invalid(fmt::format("{}: {} axes, expected [batch, heads, tokens, dim]", what, t.ndim),
                   Reason::kLayoutMismatch);
  }
  LEHR_TRY(not_null(t.shape, what));
  Tensor out;
  LEHR_ASSIGN(out.element, element_of(t, what));
  std::int64_t dense = 1;
  for (std::size_t axis = 4; axis-- > 0;) {
    out.shape[axis] = t.shape[axis];
    if (t.shape[axis] < 0 || t.shape[axis] > kMostElements / std::max<std::int64_t>(dense, 1)) {
      return invalid(fmt::format("{}: {} elements on axis {}", what, t.shape[axis], axis),
                     Reason::kOutOfRange);
    }
    out.stride[axis] = t.strides == nullptr ? dense : t.strides[axis];
    if (out.stride[axis] > kMostElements || out.stride[axis] < -kMostElements) {
      return invalid(fmt::format("{}: stride {} on axis {}", what, out.stride[axis], axis),
                     Reason::kOutOfRange);
    }
    dense *= std::max<std::int64_t>(t.shape[axis], 1);
  }
  if (out.stride[3] != 1 && out.shape[3] > 1) {
    return unsupported(
        fmt::format("{}: the last axis has stride {}, expected 1", what, out.stride[3]));
  }
  const bool empty = std::find(out.shape.begin(), out.shape.end(), 0) != out.shape.end();
  if (!empty) LEHR_TRY(not_null(t.data, what));
  out.data = static_cast<std::byte*>(t.data);
  if (out.data != nullptr) out.data += t.byte_offset;
  return out;
}

Result<AttendArgs> attend_args(const TensorPlace& place, const lehr_attend_request* request) {
  LEHR_ASSIGN(const lehr_attend_request given, read_struct(request, "request"));
  if (given.causal > 1) {
    return Error{Code::kUnsupported, Reason::kMask,
                 fmt::format("request.causal: {}; causal (0 or 1) is the only mask", given.causal)};
  }
  AttendArgs args;
  args.layer = given.layer;
  contents::AttendCall& call = args.call;
  LEHR_ASSIGN(call.q, tensor_of(place, given.q, "request.q"));
  LEHR_ASSIGN(call.out, tensor_of(place, given.out, "request.out"));
  call.scale = given.scale;
  call.soft_cap = given.soft_cap;
  call.window = given.window;
  LEHR_ASSIGN(call.choice, choice_of(given));
  call.code_pitch = given.code_pitch;
  call.mass = given.mass;
  call.peak = given.peak;
  return args;
}

lehr_step_report to_c(const runtime::StepReport& r, std::size_t links) {
  lehr_step_report out{};
  out.link_count = static_cast<uint32_t>(std::min<std::size_t>(links, LEHR_MAX_LINKS));
#define LEHR_STEP_COUNT(name, unit, help) out.name = r.name;
#define LEHR_STEP_SECONDS(field, member, statistic, help) out.field = r.member;
#include "runtime/step_report.def"
  static_assert(placement::kMaxLinks == LEHR_MAX_LINKS);
  for (std::size_t i = 0; i < out.link_count; ++i) {
    out.link_seconds[i] = r.time.link[i];
    out.link_bytes[i] = r.link[i].bytes;
    out.link_transfers[i] = r.link[i].count;
  }
  return out;
}

}  // namespace lehr::capi
