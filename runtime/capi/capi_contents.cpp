// SPDX-License-Identifier: Apache-2.0
// The step level with the caller's K and V.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/capi/boundary.hpp"
#include "runtime/capi/sequences.hpp"
#include "runtime/capi/step_args.hpp"

namespace lehr::capi {
namespace {

using contents::Tensor;

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
    LEHR_ASSIGN(const Tensor keys, tensor_of(place_of(instance), k, "k"));
    LEHR_ASSIGN(const Tensor values, tensor_of(place_of(instance), v, "v"));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->append(layer, keys, values);
  });
}

lehr_status lehr_step_attend(lehr_runtime runtime, const lehr_attend_request* request) {
  return with_kept_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const AttendArgs args, attend_args(place_of(instance), request));
    LEHR_ASSIGN(contents::Contents* const kv, contents_of(instance));
    return kv->attend(args.layer, args.call);
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
    LEHR_ASSIGN(const Tensor keys, tensor_of(place_of(instance), k, "k"));
    LEHR_ASSIGN(const Tensor values, tensor_of(place_of(instance), v, "v"));
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
