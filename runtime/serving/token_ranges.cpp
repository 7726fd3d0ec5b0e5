// SPDX-License-Identifier: Apache-2.0
// Sequences whose tokens lie on several devices: each attends over its own, results are merged.
#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "runtime/contents/step_layers.hpp"
#include "runtime/serving/merge.hpp"
#include "runtime/serving/serving_group.hpp"
#include "runtime/serving/tensors.hpp"

namespace lehr::serving {

using contents::AttendCall;
using contents::RangeTokens;
using contents::SoftmaxPair;
using contents::Tensor;

/// The position of the first token of a part's range.
std::uint64_t ServingGroup::range_first(const Member& member, std::size_t part) const {
  std::uint64_t pages = 0;
  for (std::size_t p = 0; p < part; ++p) pages += member.pages[p];
  return pages * options_.geometry.page_tokens;
}

/// Where the new tokens of a batch's sequences lie: ranges fill one after the other.
std::vector<ServingGroup::RangeBatch> ServingGroup::range_batches(
    std::span<const SequenceId> batch, std::span<const std::uint32_t> counts) const {
  std::vector<RangeBatch> parts(parts_.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Member& member = members_.at(batch[i]);
    const std::uint64_t before = tokens(batch[i]), after = before + counts[i];
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const std::uint64_t first = range_first(member, p);
      const std::uint64_t end = p + 1 < parts_.size() ? range_first(member, p + 1)
                                                      : std::numeric_limits<std::uint64_t>::max();
      const std::uint64_t from = std::clamp(before, first, end), to = std::clamp(after, first, end);
      RangeTokens part;
      part.id = member.ids[p];
      part.tokens = static_cast<std::uint32_t>(to - from);
      part.skip = part.tokens == 0 ? 0 : static_cast<std::uint32_t>(from - before);
      part.queries = counts[i];
      part.first = static_cast<std::int64_t>(before) - static_cast<std::int64_t>(first);
      parts[p].push_back(part);
    }
  }
  return parts;
}

Status ServingGroup::attend_ranges(std::uint32_t layer, const AttendCall& call) {
  if (call.choice.by != contents::ChoiceRule::By::kAll)
    return unsupported(
        "ranges of tokens are read whole: a selection would differ from range to range");
  if (call.mass != nullptr || call.peak != nullptr)
    return unsupported("shares of mass are not told where tokens lie on several devices");
  const KvGeometry& g = options_.geometry;
  const std::size_t batch = step_.tokens.size();
  const std::uint32_t most =
      step_.tokens.empty() ? 0 : *std::max_element(step_.tokens.begin(), step_.tokens.end());
  LEHR_TRY(
      contents::check_tensor(call.q, "q", batch, g.q_heads, most, g.head_dim, options_.element));
  LEHR_TRY(contents::check_tensor(call.out, "out", batch, g.q_heads, most, g.head_dim,
                                  options_.element));
  const std::size_t rows = most;
  std::vector<std::vector<std::byte>> memory(parts_.size());
  std::vector<std::vector<SoftmaxPair>> totals(parts_.size());
  std::vector<Tensor> outs;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    AttendCall part = call;
    part.q.shape[2] = most;
    // Of the caller's element, like any output: a range that is alone is what it would be alone.
    part.out = dense(memory[p], call.q.element, static_cast<std::int64_t>(batch), g.q_heads, most,
                     g.head_dim);
    totals[p].resize(batch * g.q_heads * rows);
    part.totals = totals[p].data();
    LEHR_TRY(parts_[p].contents->attend(layer, part));
    outs.push_back(part.out);
  }
  const std::size_t dim = g.head_dim;
  std::vector<float> partial(parts_.size() * dim), merged(dim);
  std::vector<AttendedPart> attended(parts_.size());
  for (std::size_t i = 0; i < batch; ++i) {
    for (std::size_t head = 0; head < g.q_heads; ++head) {
      for (std::uint32_t t = 0; t < step_.tokens[i]; ++t) {
        for (std::size_t p = 0; p < parts_.size(); ++p) {
          float* const out = partial.data() + p * dim;
          contents::to_floats(call.q.element, outs[p].row(i, head, t), out, dim);
          attended[p] = {out, totals[p][(i * g.q_heads + head) * rows + t]};
        }
        (void)merge_parts(attended, dim, merged.data());
        contents::from_floats(call.out.element, merged.data(), call.out.row(i, head, t), dim);
      }
    }
  }
  return {};
}

Status ServingGroup::gather_ranges(std::uint32_t layer, std::span<const SequenceId> ids,
                                   const Tensor& k, const Tensor& v) {
  LEHR_TRY(contents::check_kv(options_.geometry, options_.element, ids.size(), 0, k, v));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto known = members_.find(ids[i]);
    if (known == members_.end()) return invalid(fmt::format("no sequence {} in the group", ids[i]));
    const Member& member = known->second;
    if (std::min(k.shape[2], v.shape[2]) < static_cast<std::int64_t>(tokens(ids[i])))
      return invalid("K and V have fewer rows than the sequence has tokens",
                     Reason::kLayoutMismatch);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const auto first = static_cast<std::int64_t>(range_first(member, p));
      const std::int64_t size = p + 1 < parts_.size()
                                    ? std::int64_t{member.pages[p]} * options_.geometry.page_tokens
                                    : std::numeric_limits<std::int64_t>::max();
      const auto part_of = [&](const Tensor& all) {
        Tensor part = all;
        part.data = all.row(i, 0, static_cast<std::size_t>(first));
        part.shape[0] = 1;
        part.shape[2] = std::min(size, all.shape[2] - first);
        return part;
      };
      if (first >= std::min(k.shape[2], v.shape[2])) continue;
      LEHR_TRY(parts_[p].contents->gather(layer, {&member.ids[p], 1}, part_of(k), part_of(v)));
    }
  }
  return {};
}

}  // namespace lehr::serving
