// SPDX-License-Identifier: Apache-2.0
// Sequences that go back or take another's place: rolled back tokens, beams.
#include <algorithm>

#include <fmt/core.h>

#include "runtime/runtime.hpp"

namespace lehr::runtime {

std::span<const PageId> Runtime::blocks(SequenceId id) const {
  if (id >= sequences_.size() || !sequences_[id]) return {};
  return sequences_[id]->blocks;
}

Status Runtime::truncate(SequenceId id, std::uint64_t tokens) {
  if (in_step_) return invalid("a sequence cannot be truncated inside a step");
  Sequence* s = find(id);
  if (s == nullptr) return not_found(fmt::format("no sequence {}", id));
  if (s->suspended) return invalid(fmt::format("sequence {} is suspended", id));
  if (tokens > s->tokens) {
    return invalid(fmt::format("tokens: {}, the sequence has {}", tokens, s->tokens),
                   Reason::kOutOfRange);
  }
  if (tokens == s->tokens) return {};
  leave_blocks(*s, tokens / options_.geometry.page_tokens);
  s->tokens = tokens;
  if (tokens % options_.geometry.page_tokens != 0) open_block(*s);
  return {};
}

Status Runtime::reorder(std::span<const SequenceId> ids, std::span<const std::uint32_t> parents) {
  if (in_step_) return invalid("sequences cannot be reordered inside a step");
  if (ids.size() != parents.size()) return invalid("parents: one for each sequence is expected");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Sequence* s = find(ids[i]);
    if (s == nullptr) return not_found(fmt::format("no sequence {}", ids[i]));
    if (s->suspended) return invalid(fmt::format("sequence {} is suspended", ids[i]));
    const auto here = ids.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(ids.begin(), here, ids[i]) != here)
      return invalid(fmt::format("sequence {} is named twice", ids[i]));
    if (parents[i] >= ids.size()) {
      return invalid(fmt::format("parents: {} of {} sequences", parents[i], ids.size()),
                     Reason::kOutOfRange);
    }
  }
  std::vector<std::pair<std::uint64_t, std::vector<PageId>>> next;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Sequence& parent = *sequences_[ids[parents[i]]];
    next.emplace_back(parent.tokens, parent.blocks);
    for (const PageId base : parent.blocks) table_.share_block(base);
  }
  for (const SequenceId id : ids) leave_blocks(*sequences_[id], 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    sequences_[ids[i]]->tokens = next[i].first;
    sequences_[ids[i]]->blocks = std::move(next[i].second);
  }
  return {};
}

}  // namespace lehr::runtime
