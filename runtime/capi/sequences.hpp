// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/capi/boundary.hpp"

// What the calls of the step level share.

namespace lehr::capi {

inline Result<runtime::SequenceId> sequence_of(Instance& instance, lehr_sequence handle) {
  LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kSequence, instance, handle.id));
  const runtime::SequenceId* found = instance.sequences.find(id);
  if (found == nullptr) return Error{Code::kStale, Reason::kNone, "the sequence was released"};
  return *found;
}

/// What changes sequences waits for the end of a step on contents, too, which the step loop may not
/// know of.
inline Status no_contents_step(const Instance& instance) {
  if (instance.contents && instance.contents->in_step()) return invalid("a step is open");
  return {};
}

inline Status no_stream(const void* stream) {
  if (stream != nullptr) return unsupported("stream: expected NULL on this machine");
  return {};
}

/// After these the step loop's state is not to be trusted.
inline bool breaks(const Error& error) {
  return error.code == Code::kInternal || error.code == Code::kCorrupt || error.code == Code::kIo;
}

inline Status keep(Instance& instance, Status done) {
  if (!done && breaks(done.error())) instance.step_broken = done.error().what;
  return done;
}

template <class One>
lehr_status each_sequence(lehr_runtime runtime, const lehr_sequence* sequences, size_t count,
                          lehr_status* statuses, One one) {
  return with_step(runtime, [&](Instance& instance) -> Result<lehr_status> {
    if (count > 0) LEHR_TRY(not_null(sequences, "sequences"));
    return batch(count, statuses, [&](std::size_t i) -> Status {
      LEHR_ASSIGN(const runtime::SequenceId id, sequence_of(instance, sequences[i]));
      LEHR_TRY(no_contents_step(instance));
      return keep(instance, one(instance, id, i));
    });
  });
}

}  // namespace lehr::capi
