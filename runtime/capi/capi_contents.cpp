// SPDX-License-Identifier: Apache-2.0
// The step level with the caller's K and V.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/capi/boundary.hpp"
#include "runtime/capi/sequences.hpp"

namespace lehr::capi {
namespace {

using contents::ChoiceRule;
using contents::Element;
using contents::Tensor;

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

Result<Tensor> tensor_of(const Instance& instance, const lehr_tensor* given, const char* what) {
  LEHR_ASSIGN(const lehr_tensor t, read_struct(given, what));
  const bool on_device = instance.machine == MachineKind::kCuda;
  if (on_device && t.device_type == kCuda &&
      std::cmp_not_equal(t.device_id, instance.config.top_device)) {
    return unsupported(fmt::format("{}: on GPU {}, the runtime is on GPU {}", what, t.device_id,
                                   instance.config.top_device));
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

/// Asked for after the arguments were checked: those are refused alike with and without contents.
Result<contents::Contents*> contents_of(Instance& instance) {
  if (!instance.contents) {
    return unsupported(
        "the runtime's pages hold no contents of the caller: its configuration has no "
        "step.contents = \"kv\"");
  }
  return instance.contents.get();
}

template <class Body>
lehr_status with_kept_step(lehr_runtime handle, Body body) noexcept {
  return with_step(handle,
                   [&](Instance& instance) -> Status { return keep(instance, body(instance)); });
}

Result<std::vector<runtime::SequenceId>> ids_of(Instance& instance, const lehr_sequence* sequences,
                                                std::size_t count) {
  if (count > 0) LEHR_TRY(not_null(sequences, "sequences"));
  std::vector<runtime::SequenceId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    LEHR_ASSIGN(const runtime::SequenceId id, sequence_of(instance, sequences[i]));
    ids.push_back(id);
  }
  return ids;
}

Status truncate_to(Instance& instance, runtime::SequenceId id, std::uint64_t tokens) {
  return instance.contents ? instance.contents->truncate(id, tokens)
                           : instance.step->truncate(id, tokens);
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

lehr_status lehr_step_begin_tokens(lehr_runtime runtime, const lehr_sequence* sequences,
                                   const uint32_t* tokens, size_t count, void* stream) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    if (!instance.contents) LEHR_TRY(no_stream(stream));
    LEHR_ASSIGN(const auto ids, ids_of(instance, sequences, count));
    if (count > 0) LEHR_TRY(not_null(tokens, "tokens"));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->begin(ids, {tokens, count}, stream);
  });
}

lehr_status lehr_step_append(lehr_runtime runtime, uint32_t layer, const lehr_tensor* k,
                             const lehr_tensor* v) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const Tensor keys, tensor_of(instance, k, "k"));
    LEHR_ASSIGN(const Tensor values, tensor_of(instance, v, "v"));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->append(layer, keys, values);
  });
}

lehr_status lehr_step_attend(lehr_runtime runtime, const lehr_attend_request* request) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const lehr_attend_request given, read_struct(request, "request"));
    if (given.causal > 1) {
      return Error{
          Code::kUnsupported, Reason::kMask,
          fmt::format("request.causal: {}; causal (0 or 1) is the only mask", given.causal)};
    }
    contents::AttendCall call;
    LEHR_ASSIGN(call.q, tensor_of(instance, given.q, "request.q"));
    LEHR_ASSIGN(call.out, tensor_of(instance, given.out, "request.out"));
    call.scale = given.scale;
    call.soft_cap = given.soft_cap;
    call.window = given.window;
    LEHR_ASSIGN(call.choice, choice_of(given));
    call.code_pitch = given.code_pitch;
    call.mass = given.mass;
    call.peak = given.peak;
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->attend(given.layer, call);
  });
}

lehr_status lehr_sequence_truncate(lehr_runtime runtime, const lehr_sequence* sequences,
                                   const uint64_t* tokens, size_t count, lehr_status* statuses) {
  return each_sequence(runtime, sequences, count, statuses,
                       [&](Instance& instance, runtime::SequenceId id, std::size_t i) -> Status {
                         LEHR_TRY(not_null(tokens, "tokens"));
                         return truncate_to(instance, id, tokens[i]);
                       });
}

lehr_status lehr_sequence_reset(lehr_runtime runtime, const lehr_sequence* sequences, size_t count,
                                lehr_status* statuses) {
  return each_sequence(runtime, sequences, count, statuses,
                       [&](Instance& instance, runtime::SequenceId id, std::size_t) -> Status {
                         return truncate_to(instance, id, 0);
                       });
}

lehr_status lehr_sequence_reorder(lehr_runtime runtime, const lehr_sequence* sequences,
                                  const uint32_t* parents, size_t count) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const auto ids, ids_of(instance, sequences, count));
    if (count > 0) LEHR_TRY(not_null(parents, "parents"));
    return keep(instance, instance.contents ? instance.contents->reorder(ids, {parents, count})
                                            : instance.step->reorder(ids, {parents, count}));
  });
}

lehr_status lehr_sequence_gather(lehr_runtime runtime, uint32_t layer,
                                 const lehr_sequence* sequences, size_t count, const lehr_tensor* k,
                                 const lehr_tensor* v) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const auto ids, ids_of(instance, sequences, count));
    LEHR_ASSIGN(const Tensor keys, tensor_of(instance, k, "k"));
    LEHR_ASSIGN(const Tensor values, tensor_of(instance, v, "v"));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->gather(layer, ids, keys, values);
  });
}

lehr_status lehr_contents_read(lehr_runtime runtime, lehr_contents_report* out) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    LEHR_ASSIGN(const contents::ContentsStats stats, kv->stats());
    lehr_contents_report report{};
    report.read_in_hbm = stats.read_in_hbm;
    report.read_in_place = stats.read_in_place;
    report.read_below = stats.read_below;
    report.moved_pages = stats.moved_pages;
    report.moved_bytes = stats.moved_bytes;
    write_struct(out, size, report);
    return {};
  });
}

}  // extern "C"
