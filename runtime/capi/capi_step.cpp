// SPDX-License-Identifier: Apache-2.0
// The step level: sequences and decode steps.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/capi/boundary.hpp"
#include "runtime/capi/sequences.hpp"
#include "runtime/capi/step_args.hpp"

namespace lehr::capi {
namespace {

lehr_sequence new_sequence(Instance& instance, runtime::SequenceId id) {
  return {make_handle(Kind::kSequence, instance, instance.sequences.insert(id))};
}

Result<runtime::GroupSelection> group_of(Instance& instance, const lehr_selection& given) {
  runtime::GroupSelection group;
  LEHR_ASSIGN(group.sequence, sequence_of(instance, given.sequence));
  group.kv_head = given.kv_head;
  if (given.page_count > 0) LEHR_TRY(not_null(given.pages, "selection.pages"));
  group.pages = {given.pages, given.page_count};
  if (given.next_use != nullptr) group.next_use = {given.next_use, given.page_count};
  if (given.filled_next_use != 0) group.filled_next_use = given.filled_next_use;
  if (given.mass != nullptr || given.peak != nullptr) {
    const std::uint64_t tokens = instance.step->tokens(group.sequence).value_or(0);
    const std::uint32_t pages = instance.step->options().geometry.pages_for(tokens);
    if (given.code_count != pages) {
      return invalid(fmt::format("selection.code_count: {}, the context has {} pages",
                                 given.code_count, pages),
                     Reason::kOutOfRange);
    }
    group.mass = given.mass;
    group.peak = given.peak;
  }
  return group;
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

lehr_status lehr_sequence_create(lehr_runtime runtime, const lehr_sequence_desc* items,
                                 size_t count, lehr_sequence* out) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    if (count == 0) return {};
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const auto given, StructArray<const lehr_sequence_desc>::of(items, count, "items"));
    std::vector<runtime::SequenceInfo> infos;
    for (std::size_t i = 0; i < count; ++i) {
      LEHR_ASSIGN(const lehr_sequence_desc desc, given.read(i, "items"));
      if (desc.flags != 0) return invalid("items.flags: expected 0");
      runtime::SequenceInfo info;
      info.prompt_tokens = desc.prompt_tokens;
      if (desc.first_use_count > 0) LEHR_TRY(not_null(desc.first_use, "items.first_use"));
      if (desc.first_use != nullptr) info.first_use = {desc.first_use, desc.first_use_count};
      if (instance.contents && info.prompt_tokens > 0) {
        return unsupported(
            "items.prompt_tokens: a runtime with contents gets its tokens by lehr_step_append");
      }
      infos.push_back(info);
    }
    LEHR_TRY(no_contents_step(instance));
    auto made = instance.step->create_sequences(infos);
    if (!made) return keep(instance, std::move(made).error());
    for (std::size_t i = 0; i < count; ++i) {
      if (instance.contents) instance.contents->created((*made)[i]);
      out[i] = new_sequence(instance, (*made)[i]);
    }
    return {};
  });
}

lehr_status lehr_sequence_fork(lehr_runtime runtime, const lehr_sequence* parents, size_t count,
                               lehr_sequence* out, lehr_status* statuses) {
  return each_sequence(runtime, parents, count, statuses,
                       [&](Instance& instance, runtime::SequenceId id, std::size_t i) -> Status {
                         LEHR_TRY(not_null(out, "out"));
                         out[i] = {0};
                         LEHR_ASSIGN(const runtime::SequenceId child, instance.step->fork(id));
                         if (instance.contents) instance.contents->forked(id, child);
                         out[i] = new_sequence(instance, child);
                         return {};
                       });
}

lehr_status lehr_sequence_append(lehr_runtime runtime, const lehr_sequence* sequences,
                                 const uint64_t* tokens, size_t count, lehr_status* statuses) {
  return each_sequence(
      runtime, sequences, count, statuses,
      [&](Instance& instance, runtime::SequenceId id, std::size_t i) -> Status {
        LEHR_TRY(not_null(tokens, "tokens"));
        if (instance.contents) {
          return unsupported("a runtime with contents gets its tokens by lehr_step_append");
        }
        return instance.step->append(id, tokens[i]);
      });
}

lehr_status lehr_sequence_suspend(lehr_runtime runtime, const lehr_sequence* sequences,
                                  size_t count, lehr_status* statuses) {
  return each_sequence(runtime, sequences, count, statuses,
                       [](Instance& instance, runtime::SequenceId id, std::size_t) -> Status {
                         LEHR_TRY(instance.step->suspend(id));
                         return instance.contents ? instance.contents->suspended(id) : Status{};
                       });
}

lehr_status lehr_sequence_resume(lehr_runtime runtime, const lehr_sequence* sequences, size_t count,
                                 lehr_status* statuses) {
  return each_sequence(runtime, sequences, count, statuses,
                       [](Instance& instance, runtime::SequenceId id, std::size_t) -> Status {
                         LEHR_TRY(instance.step->resume(id));
                         return instance.contents ? instance.contents->resumed(id) : Status{};
                       });
}

lehr_status lehr_sequence_release(lehr_runtime runtime, const lehr_sequence* sequences,
                                  size_t count, lehr_status* statuses) {
  return each_sequence(runtime, sequences, count, statuses,
                       [&](Instance& instance, runtime::SequenceId id, std::size_t i) -> Status {
                         LEHR_TRY(instance.step->release(id));
                         if (instance.contents) instance.contents->released(id);
                         LEHR_ASSIGN(const std::uint64_t slot,
                                     handle_id(Kind::kSequence, instance, sequences[i].id));
                         instance.sequences.erase(slot);
                         return {};
                       });
}

lehr_status lehr_sequence_tokens(lehr_runtime runtime, lehr_sequence sequence, uint64_t* out) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    LEHR_TRY(not_null(out, "out"));
    LEHR_ASSIGN(const runtime::SequenceId id, sequence_of(instance, sequence));
    *out = instance.step->tokens(id).value_or(0);
    return {};
  });
}

lehr_status lehr_step_begin(lehr_runtime runtime, const lehr_sequence* sequences, size_t count,
                            void* stream) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    if (!instance.contents) LEHR_TRY(no_stream(stream));
    if (count > 0) LEHR_TRY(not_null(sequences, "sequences"));
    std::vector<runtime::SequenceId> ids;
    for (std::size_t i = 0; i < count; ++i) {
      LEHR_ASSIGN(const runtime::SequenceId id, sequence_of(instance, sequences[i]));
      ids.push_back(id);
    }
    if (instance.contents) {
      const std::vector<std::uint32_t> one_each(ids.size(), 1);
      return keep(instance, instance.contents->begin(ids, one_each, stream));
    }
    return keep(instance, instance.step->begin_step(ids));
  });
}

lehr_status lehr_step_layer(lehr_runtime runtime, uint32_t layer, const lehr_selection* groups,
                            size_t count) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    if (instance.contents) {
      return unsupported("a runtime with contents takes lehr_step_append and lehr_step_attend");
    }
    LEHR_ASSIGN(const auto given, StructArray<const lehr_selection>::of(groups, count, "groups"));
    std::vector<runtime::GroupSelection> selections;
    selections.reserve(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      LEHR_ASSIGN(const lehr_selection selection, given.read(i, "groups"));
      LEHR_ASSIGN(const runtime::GroupSelection group, group_of(instance, selection));
      selections.push_back(group);
    }
    return keep(instance, instance.step->run_layer(layer, selections));
  });
}

lehr_status lehr_step_end(lehr_runtime runtime, lehr_step_report* out) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    std::uint32_t size = 0;
    if (out != nullptr) {
      LEHR_ASSIGN(size, check_size(out, "out"));
    }
    auto report = instance.contents ? instance.contents->end() : instance.step->end_step();
    if (!report) return keep(instance, std::move(report).error());
    if (out != nullptr) write_struct(out, size, to_c(*report, instance.platform.links.size()));
    return {};
  });
}

lehr_status lehr_step_abandon(lehr_runtime runtime) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    if (instance.contents) return keep(instance, instance.contents->abandon());
    if (!instance.step->in_step()) return invalid("no step is open");
    instance.step->abandon_step();
    return {};
  });
}

lehr_status lehr_step_totals(lehr_runtime runtime, lehr_step_report* out) {
  return with_step(runtime, [&](Instance& instance) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    write_struct(out, size, to_c(instance.step->totals(), instance.platform.links.size()));
    return {};
  });
}

}  // extern "C"
