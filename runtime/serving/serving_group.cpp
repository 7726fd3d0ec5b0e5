// SPDX-License-Identifier: Apache-2.0
#include "runtime/serving/serving_group.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/core.h>

#include "runtime/serving/tensors.hpp"

namespace lehr::serving {

using contents::AttendCall;
using contents::Tensor;
using runtime::StepReport;

namespace {

constexpr std::size_t kMost = 64;                                                 ///< devices
constexpr std::uint64_t kMostTokens = std::numeric_limits<std::uint32_t>::max();  ///< of a sequence

Status whole_model(const ServingGroupOptions& o) {
  const KvGeometry& g = o.geometry;
  if (g.kv_heads == 0 || g.q_heads % g.kv_heads != 0 || g.layers == 0)
    return invalid("a serving group needs layers, and query heads that are a multiple of KV heads");
  if (o.weights.empty() || o.weights.size() > kMost || !o.make) {
    return invalid(
        fmt::format("a serving group needs 1 to {} devices, and what makes them", kMost));
  }
  if (o.split == Split::kTokens && !o.host_memory)
    return unsupported("ranges of tokens are merged in the host's memory: not on GPUs");
  return {};
}

}  // namespace

Result<std::unique_ptr<ServingGroup>> ServingGroup::create(ServingGroupOptions options) {
  LEHR_TRY(whole_model(options));
  std::unique_ptr<ServingGroup> made(new ServingGroup(std::move(options)));
  LEHR_TRY(made->deal());
  for (std::size_t d = 0; d < made->units_.size(); ++d) {
    LEHR_ASSIGN(Part part, made->make_part(d, made->units_[d]));
    made->parts_.push_back(std::move(part));
  }
  made->seen_.resize(made->parts_.size());
  return made;
}

/// The first division. Tokens have no number yet: shares in thousandths.
Status ServingGroup::deal() {
  constexpr std::uint32_t kShares = 1000;
  const KvGeometry& g = options_.geometry;
  const std::uint32_t units = by(Split::kLayers)  ? g.layers
                              : by(Split::kHeads) ? g.kv_heads
                                                  : kShares;
  LEHR_ASSIGN(units_, divided(units, options_.split, options_.weights));
  return {};
}

Result<Part> ServingGroup::make_part(std::size_t device, std::uint32_t units) const {
  KvGeometry g = options_.geometry;
  if (by(Split::kLayers)) {
    g.layers = units;
  } else if (by(Split::kHeads)) {
    g.q_heads = g.q_heads / g.kv_heads * units;
    g.kv_heads = units;
  }
  return options_.make(static_cast<std::uint32_t>(device), g);
}

// ---------------------------------------------------------------------- sequences

Result<SequenceId> ServingGroup::create_sequence(std::uint64_t expected) {
  if (in_step()) return invalid("a sequence cannot be created inside a step");
  if (expected > kMostTokens)
    return invalid(fmt::format("{} tokens expected of a sequence", expected), Reason::kOutOfRange);
  Member member;
  member.expected = expected;
  if (by(Split::kTokens)) {
    const std::vector<double> weights(units_.begin(), units_.end());
    member.pages = token_ranges(options_.geometry.pages_for(expected), weights);
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const runtime::SequenceInfo info;
    auto made = parts_[p].runtime->create_sequences({&info, 1});
    if (!made) {  // all or none
      for (std::size_t back = 0; back < p; ++back) {
        LEHR_TRY(parts_[back].runtime->release(member.ids[back]));
        parts_[back].contents->released(member.ids[back]);
      }
      return std::move(made).error();
    }
    parts_[p].contents->created(made->front());
    member.ids.push_back(made->front());
  }
  members_.emplace(next_, std::move(member));
  return next_++;
}

Result<SequenceId> ServingGroup::fork(SequenceId parent) {
  const auto known = members_.find(parent);
  if (known == members_.end()) return invalid("no such sequence");
  if (in_step()) return invalid("a sequence cannot be forked inside a step");
  Member child = known->second;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    auto made = parts_[p].runtime->fork(known->second.ids[p]);
    if (!made) {
      for (std::size_t back = 0; back < p; ++back) {
        LEHR_TRY(parts_[back].runtime->release(child.ids[back]));
        parts_[back].contents->released(child.ids[back]);
      }
      return std::move(made).error();
    }
    parts_[p].contents->forked(known->second.ids[p], *made);
    child.ids[p] = *made;
  }
  members_.emplace(next_, std::move(child));
  return next_++;
}

Status ServingGroup::release(SequenceId id) {
  const auto known = members_.find(id);
  if (known == members_.end()) return invalid("no such sequence");
  if (in_step()) return invalid("a sequence cannot be released inside a step");
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    LEHR_TRY(parts_[p].runtime->release(known->second.ids[p]));
    parts_[p].contents->released(known->second.ids[p]);
  }
  members_.erase(known);
  return {};
}

std::uint64_t ServingGroup::tokens(SequenceId id) const {
  const auto known = members_.find(id);
  if (known == members_.end()) return 0;
  std::uint64_t sum = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    sum += parts_[p].runtime->tokens(known->second.ids[p]).value_or(0);
    if (!by(Split::kTokens)) break;
  }
  return sum;
}

Result<std::vector<SequenceId>> ServingGroup::names_in(std::size_t part,
                                                       std::span<const SequenceId> ids) const {
  std::vector<SequenceId> names;
  for (const SequenceId id : ids) {
    const auto known = members_.find(id);
    if (known == members_.end()) return invalid(fmt::format("no sequence {} in the group", id));
    names.push_back(known->second.ids[part]);
  }
  return names;
}

// ---------------------------------------------------------------------- steps

bool ServingGroup::in_step() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.contents->in_step(); });
}

Status ServingGroup::begin(std::span<const SequenceId> batch, std::span<const std::uint32_t> tokens,
                           std::span<void* const> streams) {
  if (batch.size() != tokens.size()) return invalid("tokens: one number a sequence is expected");
  if (!streams.empty() && streams.size() != parts_.size())
    return invalid("streams: one a device is expected");
  if (in_step()) return invalid("a step is open already");
  LEHR_ASSIGN(Step step, step_of(batch, tokens));
  std::vector<RangeBatch> ranges_here;
  if (by(Split::kTokens)) ranges_here = range_batches(batch, tokens);
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    void* const stream = streams.empty() ? nullptr : streams[p];
    contents::Contents& contents = *parts_[p].contents;
    Status begun = by(Split::kTokens) ? contents.begin_range(ranges_here[p], stream)
                                      : contents.begin(step.names[p], tokens, stream);
    if (begun) continue;
    while (p-- > 0) (void)parts_[p].contents->abandon();
    return begun;
  }
  step_ = std::move(step);
  return {};
}

Result<ServingGroup::Step> ServingGroup::step_of(std::span<const SequenceId> batch,
                                                 std::span<const std::uint32_t> tokens) const {
  Step step;
  step.tokens.assign(tokens.begin(), tokens.end());
  step.layers.assign(parts_.size(), 0);
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    LEHR_ASSIGN(std::vector<SequenceId> names, names_in(p, batch));
    auto& before = step.before.emplace_back();
    for (const SequenceId name : names)
      before.push_back(parts_[p].runtime->tokens(name).value_or(0));
    step.names.push_back(std::move(names));
  }
  return step;
}

/// Calls use(part, its layer, its KV heads) for the parts that hold a layer.
template <class Use>
Status ServingGroup::for_layer(std::uint32_t layer, Use use) {
  if (layer >= options_.geometry.layers) return invalid("no such layer", Reason::kOutOfRange);
  const std::vector<Range> all = ranges();
  const Range every_head{0, options_.geometry.kv_heads};
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Range& r = all[p];
    if (by(Split::kLayers) && (layer < r.first || layer >= r.end())) continue;
    LEHR_TRY(
        use(p, by(Split::kLayers) ? layer - r.first : layer, by(Split::kHeads) ? r : every_head));
  }
  return {};
}

Status ServingGroup::all_heads(const Tensor& k, const Tensor& v) const {
  const auto heads = static_cast<std::int64_t>(options_.geometry.kv_heads);
  if (k.shape[1] == heads && v.shape[1] == heads) return {};
  return invalid("K and V of a serving group have all KV heads", Reason::kLayoutMismatch);
}

Status ServingGroup::append(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  LEHR_TRY(all_heads(k, v));
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) {
    return append_to(p, own, heads_of(k, h.first, h.count), heads_of(v, h.first, h.count));
  });
}

/// `layer`: the part's own.
Status ServingGroup::append_to(std::size_t part, std::uint32_t layer, const Tensor& k,
                               const Tensor& v) {
  LEHR_TRY(parts_[part].contents->append(layer, k, v));
  ++step_.layers[part];
  return {};
}

Status ServingGroup::attend_heads(std::size_t p, std::uint32_t layer, Range heads,
                                  const AttendCall& call) {
  const KvGeometry& g = options_.geometry;
  const std::uint32_t ratio = g.q_heads / g.kv_heads;
  AttendCall part = call;
  part.q = heads_of(call.q, heads.first * ratio, heads.count * ratio);
  part.out = heads_of(call.out, heads.first * ratio, heads.count * ratio);
  if (heads.count == g.kv_heads) return parts_[p].contents->attend(layer, part);
  // Codes of all heads lie together: a part writes its own apart.
  const std::size_t rows = step_.tokens.size() * heads.count, pitch = call.code_pitch;
  std::vector<MassCode> mass(call.mass != nullptr ? rows * pitch : 0);
  std::vector<MassCode> peak(call.peak != nullptr ? rows * pitch : 0);
  part.mass = call.mass != nullptr ? mass.data() : nullptr;
  part.peak = call.peak != nullptr ? peak.data() : nullptr;
  LEHR_TRY(parts_[p].contents->attend(layer, part));
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t to =
        (row / heads.count * g.kv_heads + heads.first + row % heads.count) * pitch;
    if (call.mass != nullptr) std::copy_n(&mass[row * pitch], pitch, call.mass + to);
    if (call.peak != nullptr) std::copy_n(&peak[row * pitch], pitch, call.peak + to);
  }
  return {};
}

Status ServingGroup::attend(std::uint32_t layer, const AttendCall& call) {
  const auto heads = static_cast<std::int64_t>(options_.geometry.q_heads);
  if (call.q.shape[1] != heads || call.out.shape[1] != heads)
    return invalid("queries of a serving group have all query heads", Reason::kLayoutMismatch);
  if (by(Split::kTokens)) return attend_ranges(layer, call);
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) {
    return attend_heads(p, own, h, call);
  });
}

namespace {

Status no_such_part(std::size_t part, std::size_t parts) {
  return invalid(fmt::format("device {} of {}", part, parts), Reason::kOutOfRange);
}

}  // namespace

Status ServingGroup::append_part(std::size_t part, std::uint32_t layer, const Tensor& k,
                                 const Tensor& v) {
  if (part >= parts_.size()) return no_such_part(part, parts_.size());
  if (by(Split::kTokens)) return unsupported("ranges of tokens are fed together");
  const Range r = ranges()[part];
  if (!by(Split::kLayers)) return append_to(part, layer, k, v);
  if (layer < r.first || layer >= r.end())
    return invalid(fmt::format("layer {} is not device {}'s", layer, part), Reason::kOutOfRange);
  return append_to(part, layer - r.first, k, v);
}

Status ServingGroup::attend_part(std::size_t part, std::uint32_t layer, const AttendCall& call) {
  if (part >= parts_.size()) return no_such_part(part, parts_.size());
  if (by(Split::kTokens)) return unsupported("ranges of tokens attend together");
  const Range r = ranges()[part];
  if (!by(Split::kLayers)) return parts_[part].contents->attend(layer, call);
  if (layer < r.first || layer >= r.end())
    return invalid(fmt::format("layer {} is not device {}'s", layer, part), Reason::kOutOfRange);
  return parts_[part].contents->attend(layer - r.first, call);
}

Result<std::vector<StepReport>> ServingGroup::end() {
  if (!in_step()) return invalid("no step is open");
  for (std::size_t p = 0; p < parts_.size(); ++p) {  // else some would end it, and others not
    const std::uint32_t all = by(Split::kLayers) ? units_[p] : options_.geometry.layers;
    if (step_.layers[p] == all) continue;
    return invalid(
        fmt::format("device {}: {} of {} layers have their K and V", p, step_.layers[p], all));
  }
  std::vector<StepReport> reports;
  for (Part& part : parts_) {
    LEHR_ASSIGN(const StepReport report, part.contents->end());
    reports.push_back(report);
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) seen_[p].add(reports[p]);
  ++steps_;
  return reports;
}

Status ServingGroup::abandon() {
  if (!in_step()) return {};
  Status worst;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    Status left;
    if (part.contents->in_step()) {
      left = part.contents->abandon();
    } else {  // it had ended when another could not
      for (std::size_t i = 0; i < step_.names[p].size() && left; ++i)
        left = part.contents->truncate(step_.names[p][i], step_.before[p][i]);
    }
    if (!left) worst = std::move(left);
  }
  return worst;
}

Status ServingGroup::gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                            const Tensor& v) {
  LEHR_TRY(all_heads(k, v));
  if (by(Split::kTokens)) return gather_ranges(layer, ids, k, v);
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) -> Status {
    LEHR_ASSIGN(const std::vector<SequenceId> names, names_in(p, ids));
    return parts_[p].contents->gather(own, names, heads_of(k, h.first, h.count),
                                      heads_of(v, h.first, h.count));
  });
}

}  // namespace lehr::serving
