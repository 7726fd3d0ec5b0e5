// SPDX-License-Identifier: Apache-2.0
#include "runtime/serving/serving_group.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>

namespace lehr::serving {

using contents::AttendCall;
using contents::Tensor;
using runtime::StepReport;

namespace {

constexpr std::size_t kMost = 64;  ///< devices

Status whole_model(const ServingGroupOptions& o) {
  const KvGeometry& g = o.geometry;
  if (g.kv_heads == 0 || g.q_heads % g.kv_heads != 0 || g.layers == 0)
    return invalid("a serving group needs layers, and query heads that are a multiple of KV heads");
  if (o.weights.empty() || o.weights.size() > kMost || !o.make)
    return invalid(
        fmt::format("a serving group needs 1 to {} devices, and what makes them", kMost));
  return {};
}

/// A dense tensor of the caller's own memory.
Tensor dense(std::vector<std::byte>& memory, contents::Element element, std::int64_t heads,
             std::int64_t tokens, std::int64_t dim) {
  memory.resize(static_cast<std::size_t>(heads * tokens * dim) * contents::bytes_of(element));
  return {memory.data(),
          element,
          {1, heads, tokens, dim},
          {heads * tokens * dim, tokens * dim, dim, 1}};
}

}  // namespace

Result<std::unique_ptr<ServingGroup>> ServingGroup::create(ServingGroupOptions options) {
  LEHR_TRY(whole_model(options));
  std::unique_ptr<ServingGroup> made(new ServingGroup(std::move(options)));
  const KvGeometry& g = made->options_.geometry;
  LEHR_ASSIGN(made->units_,
              placement::divide(made->by_layers() ? g.layers : g.kv_heads, made->options_.weights));
  LEHR_ASSIGN(made->parts_, made->make_parts(made->units_));
  made->seen_.resize(made->parts_.size());
  return made;
}

Result<std::vector<Part>> ServingGroup::make_parts(std::span<const std::uint32_t> units) const {
  std::vector<Part> parts;
  for (std::size_t d = 0; d < units.size(); ++d) {
    KvGeometry g = options_.geometry;
    if (by_layers()) {
      g.layers = units[d];
    } else {
      g.q_heads = g.q_heads / g.kv_heads * units[d];
      g.kv_heads = units[d];
    }
    LEHR_ASSIGN(Part part, options_.make(static_cast<std::uint32_t>(d), g));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<ServingGroup::Range> ServingGroup::ranges() const {
  std::vector<Range> ranges;
  std::uint32_t first = 0;
  for (const std::uint32_t count : units_) {
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

// ---------------------------------------------------------------------- sequences

Result<SequenceId> ServingGroup::create_sequence() {
  std::vector<SequenceId> ids;
  for (Part& part : parts_) {
    const runtime::SequenceInfo info;
    LEHR_ASSIGN(const std::vector<SequenceId> made, part.runtime->create_sequences({&info, 1}));
    part.contents->created(made.front());
    ids.push_back(made.front());
  }
  names_.emplace(next_, std::move(ids));
  return next_++;
}

Result<SequenceId> ServingGroup::fork(SequenceId parent) {
  const auto known = names_.find(parent);
  if (known == names_.end()) return invalid("no such sequence");
  std::vector<SequenceId> ids;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    LEHR_ASSIGN(const SequenceId child, parts_[p].runtime->fork(known->second[p]));
    parts_[p].contents->forked(known->second[p], child);
    ids.push_back(child);
  }
  names_.emplace(next_, std::move(ids));
  return next_++;
}

Status ServingGroup::release(SequenceId id) {
  const auto known = names_.find(id);
  if (known == names_.end()) return invalid("no such sequence");
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    LEHR_TRY(parts_[p].runtime->release(known->second[p]));
    parts_[p].contents->released(known->second[p]);
  }
  names_.erase(known);
  return {};
}

Result<std::vector<SequenceId>> ServingGroup::names_in(std::size_t part,
                                                       std::span<const SequenceId> ids) const {
  std::vector<SequenceId> names;
  for (const SequenceId id : ids) {
    const auto known = names_.find(id);
    if (known == names_.end()) return invalid(fmt::format("no sequence {} in the group", id));
    names.push_back(known->second[part]);
  }
  return names;
}

// ---------------------------------------------------------------------- steps

Status ServingGroup::begin(std::span<const SequenceId> batch,
                           std::span<const std::uint32_t> tokens) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Status begun;
    if (auto names = names_in(p, batch)) {
      begun = parts_[p].contents->begin(*names, tokens, nullptr);
    } else {
      begun = names.error();
    }
    if (begun) continue;
    while (p-- > 0) (void)parts_[p].contents->abandon();
    return begun;
  }
  batch_ = batch.size();
  return {};
}

/// A part's heads of a tensor of all.
Tensor ServingGroup::slice(const Tensor& tensor, std::uint32_t first, std::uint32_t heads) const {
  Tensor part = tensor;
  if (tensor.data != nullptr) part.data = tensor.row(0, first, 0);
  part.shape[1] = heads;
  return part;
}

/// Calls use(part, its layer, its KV heads) for the parts that hold a layer.
template <class Use>
Status ServingGroup::for_layer(std::uint32_t layer, Use use) {
  if (layer >= options_.geometry.layers) return invalid("no such layer", Reason::kOutOfRange);
  const std::vector<Range> all = ranges();
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Range& r = all[p];
    if (!by_layers()) {
      LEHR_TRY(use(p, layer, r));
    } else if (layer >= r.first && layer < r.first + r.count) {
      LEHR_TRY(use(p, layer - r.first, Range{0, options_.geometry.kv_heads}));
    }
  }
  return {};
}

Status ServingGroup::append(std::uint32_t layer, const Tensor& k, const Tensor& v) {
  const auto heads = static_cast<std::int64_t>(options_.geometry.kv_heads);
  if (k.shape[1] != heads || v.shape[1] != heads)
    return invalid("K and V of a serving group have all KV heads", Reason::kLayoutMismatch);
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) {
    return parts_[p].contents->append(own, slice(k, h.first, h.count), slice(v, h.first, h.count));
  });
}

Status ServingGroup::attend_part(std::size_t p, std::uint32_t layer, Range heads,
                                 const AttendCall& call) {
  const KvGeometry& g = options_.geometry;
  const std::uint32_t ratio = g.q_heads / g.kv_heads;
  AttendCall part = call;
  part.q = slice(call.q, heads.first * ratio, heads.count * ratio);
  part.out = slice(call.out, heads.first * ratio, heads.count * ratio);
  if (heads.count == g.kv_heads) return parts_[p].contents->attend(layer, part);
  // Codes of all heads lie together: a part writes its own apart.
  const std::size_t rows = batch_ * heads.count, pitch = call.code_pitch;
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
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) {
    return attend_part(p, own, h, call);
  });
}

Result<std::vector<StepReport>> ServingGroup::end() {
  std::vector<StepReport> reports;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    LEHR_ASSIGN(const StepReport report, parts_[p].contents->end());
    seen_[p].add(report);
    reports.push_back(report);
  }
  ++steps_;
  return reports;
}

Status ServingGroup::abandon() {
  Status worst;
  for (Part& part : parts_) {
    if (!part.contents->in_step()) continue;
    if (Status left = part.contents->abandon(); !left) worst = std::move(left);
  }
  return worst;
}

Status ServingGroup::gather(std::uint32_t layer, std::span<const SequenceId> ids, const Tensor& k,
                            const Tensor& v) {
  return for_layer(layer, [&](std::size_t p, std::uint32_t own, Range h) -> Status {
    LEHR_ASSIGN(const std::vector<SequenceId> names, names_in(p, ids));
    return parts_[p].contents->gather(own, names, slice(k, h.first, h.count),
                                      slice(v, h.first, h.count));
  });
}

// ---------------------------------------------------------------------- rebalancing

std::vector<placement::DeviceLoad> ServingGroup::take_loads() {
  std::vector<placement::DeviceLoad> loads;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const StepReport& seen = seen_[p];
    const placement::Platform& platform = parts_[p].runtime->options().platform;
    const auto size = static_cast<double>(parts_[p].runtime->page_bytes());
    placement::DeviceLoad load;
    load.units = units_[p];
    if (steps_ > 0)
      load.step = (seen.measured > 0 ? seen.measured : seen.total) / static_cast<double>(steps_);
    if (seen.reads > 0)
      load.hit_rate = static_cast<double>(seen.hits) / static_cast<double>(seen.reads);
    load.hbm = platform.hbm.at(size, 1);
    const LinkId link = platform.link(platform.home, kHbm);
    load.link = link == placement::kNoLink ? load.hbm : platform.links[link].curve.at(size, 1);
    loads.push_back(load);
  }
  seen_.assign(parts_.size(), {});
  steps_ = 0;
  return loads;
}

/// A layer at a time through memory of ours.
Status ServingGroup::copy_into(ServingGroup& to, SequenceId from_id, SequenceId to_id) {
  const KvGeometry& g = options_.geometry;
  const std::uint64_t tokens =
      parts_.front().runtime->tokens(names_.at(from_id).front()).value_or(0);
  if (tokens == 0) return {};
  const auto count = static_cast<std::uint32_t>(tokens);
  std::vector<std::byte> keys, values;
  const Tensor k = dense(keys, options_.element, g.kv_heads, count, g.head_dim);
  const Tensor v = dense(values, options_.element, g.kv_heads, count, g.head_dim);
  LEHR_TRY(to.begin({&to_id, 1}, {&count, 1}));
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    LEHR_TRY(gather(layer, {&from_id, 1}, k, v));
    LEHR_TRY(to.append(layer, k, v));
  }
  LEHR_TRY(to.end());
  return {};
}

Status ServingGroup::redeal(std::span<const std::uint32_t> units) {
  if (units.size() != parts_.size() || std::find(units.begin(), units.end(), 0U) != units.end() ||
      std::accumulate(units.begin(), units.end(), std::uint64_t{0}) !=
          std::accumulate(units_.begin(), units_.end(), std::uint64_t{0}))
    return invalid("dealing anew needs a number for each device, none 0, of the same sum",
                   Reason::kOutOfRange);
  if (std::equal(units.begin(), units.end(), units_.begin())) return {};
  for (const Part& part : parts_) {
    if (part.contents->in_step()) return invalid("units change device between steps only");
  }
  ServingGroup next(options_);
  next.units_.assign(units.begin(), units.end());
  next.seen_.resize(parts_.size());
  LEHR_ASSIGN(next.parts_, next.make_parts(units));
  Names names;
  for (const auto& [id, old] : names_) {
    LEHR_ASSIGN(const SequenceId made, next.create_sequence());
    LEHR_TRY(copy_into(next, id, made));
    names[id] = next.names_.at(made);
  }
  units_ = std::move(next.units_);
  parts_ = std::move(next.parts_);
  names_ = std::move(names);
  seen_.assign(parts_.size(), {});
  steps_ = 0;
  return {};
}

}  // namespace lehr::serving
