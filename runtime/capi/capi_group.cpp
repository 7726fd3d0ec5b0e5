// SPDX-License-Identifier: Apache-2.0
// Groups: several devices that serve the same sequences.
#include <algorithm>

#include <fmt/format.h>

#include "runtime/capi/boundary.hpp"
#include "runtime/capi/group.hpp"
#include "runtime/capi/sequences.hpp"
#include "runtime/capi/step_args.hpp"

namespace lehr::capi {
namespace {

using serving::SequenceId;

constexpr std::uint32_t kMostDevices = 64;
constexpr std::uint32_t kPagesAtOnce = 20;  ///< one in so many

/// boundary() with the group of a handle, whose calls take turns.
template <class Body>
lehr_status with_group(lehr_group handle, Body body) noexcept {
  return boundary([&]() -> Result<lehr_status> {
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(const std::shared_ptr<Group> group, registry->find_group(handle.id));
    const std::lock_guard<std::mutex> hold(group->mutex);
    if (!group->broken.empty())
      return internal_error("the group stopped earlier: " + group->broken);
    auto result = body(*group);
    if (!result) {
      if (breaks(result.error())) group->broken = result.error().what;
      return std::move(result).error();
    }
    if constexpr (requires { *result; }) {
      return *result;
    } else {
      return lehr_status{LEHR_OK};
    }
  });
}

Result<SequenceId> member_of(Group& group, lehr_sequence handle) {
  LEHR_ASSIGN(const std::uint64_t id, handle_id(Kind::kGroupSequence, group.tag, handle.id));
  const SequenceId* found = group.sequences.find(id);
  if (found == nullptr) return Error{Code::kStale, Reason::kNone, "the sequence was released"};
  return *found;
}

lehr_sequence new_member(Group& group, SequenceId id) {
  return {make_handle(Kind::kGroupSequence, group.tag, group.sequences.insert(id))};
}

Result<std::vector<SequenceId>> members_of(Group& group, const lehr_sequence* sequences,
                                           std::size_t count) {
  if (count > 0) LEHR_TRY(not_null(sequences, "sequences"));
  std::vector<SequenceId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    LEHR_ASSIGN(const SequenceId id, member_of(group, sequences[i]));
    ids.push_back(id);
  }
  return ids;
}

/// Where tensors of a call lie: the process's memory, or the device's.
Result<TensorPlace> place_of(const Group& group, std::uint32_t device) {
  if (device == LEHR_GROUP_WHOLE) {
    if (group.machine != MachineKind::kCuda) return TensorPlace{};
    return unsupported(
        "device: tensors of the whole model need machine = \"host\"; on GPUs each "
        "device is fed with its own");
  }
  if (device >= group.gpus.size()) {
    return invalid(fmt::format("device: {} of {}", device, group.gpus.size()), Reason::kOutOfRange);
  }
  if (group.machine != MachineKind::kCuda) return TensorPlace{};
  return TensorPlace{group.gpus[device]};
}

Result<std::shared_ptr<Group>> open_with(const lehr_group_options& given, std::uint32_t seed) {
  if (given.flags != 0) return invalid("options.flags: expected 0");
  if (given.split < LEHR_SPLIT_HEADS || given.split > LEHR_SPLIT_TOKENS)
    return invalid(fmt::format("options.split: {}, expected LEHR_SPLIT_*", given.split),
                   Reason::kOutOfRange);
  if (given.device_count == 0 || given.device_count > kMostDevices) {
    return invalid(
        fmt::format("options.device_count: {}, expected 1 to {}", given.device_count, kMostDevices),
        Reason::kOutOfRange);
  }
  LEHR_TRY(not_null(given.configs, "options.configs"));
  std::vector<config::Config> configs;
  for (std::uint32_t d = 0; d < given.device_count; ++d) {
    LEHR_ASSIGN(const std::string_view text, bytes_of(given.configs[d], "options.configs"));
    LEHR_ASSIGN(config::Config config,
                config::parse_config(std::string(text), fmt::format("<config {}>", d)));
    configs.push_back(std::move(config));
  }
  std::vector<double> weights;
  if (given.weights != nullptr) weights.assign(given.weights, given.weights + given.device_count);
  return open_group(configs, static_cast<serving::Split>(given.split), std::move(weights), seed);
}

/// Units by the loads that were seen, or as the caller has them.
Result<std::vector<std::uint32_t>> wanted_units(Group& group, const lehr_rebalance_request& given,
                                                lehr_rebalance_report& told) {
  serving::ServingGroup& serving = *group.serving;
  if (serving.in_step()) return invalid("units change device between steps only");
  if (given.unit_count > 0) {
    LEHR_TRY(not_null(given.units, "request.units"));
    if (given.unit_count != serving.devices()) {
      return invalid(fmt::format("request.unit_count: {}, the group has {} devices",
                                 given.unit_count, serving.devices()),
                     Reason::kOutOfRange);
    }
    return std::vector<std::uint32_t>(given.units, given.units + given.unit_count);
  }
  const auto now = serving.units();
  if (!(given.least_gain >= 0 && given.least_gain < 1)) {
    return invalid(fmt::format("request.least_gain: {}, expected 0 to 1", given.least_gain),
                   Reason::kOutOfRange);
  }
  const auto loads = serving.take_loads();
  placement::RebalanceRule rule;
  if (serving.split() == serving::Split::kTokens) {  // of very many pages
    for (const auto& load : loads) rule.most_units += load.units / kPagesAtOnce;
  }
  if (given.most_units != 0) rule.most_units = given.most_units;
  if (given.least_gain != 0) rule.least_gain = given.least_gain;
  const auto units = placement::rebalanced(loads, rule);
  for (std::size_t d = 0; d < loads.size(); ++d) {
    told.slowest_seconds = std::max(told.slowest_seconds, loads[d].step);
    told.expected_seconds =
        std::max(told.expected_seconds, placement::predicted_step(loads[d], units[d]));
  }
  const bool stays = std::equal(loads.begin(), loads.end(), units.begin(),
                                [](const auto& load, std::uint32_t n) { return load.units == n; });
  return stays ? std::vector<std::uint32_t>(now.begin(), now.end()) : units;
}

}  // namespace
}  // namespace lehr::capi

using namespace lehr;
using namespace lehr::capi;

extern "C" {

lehr_status lehr_group_open(uint32_t version, const lehr_group_options* options, lehr_group* out) {
  return boundary([&]() -> Status {
    LEHR_TRY(not_null(out, "out"));
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_TRY(check_version(version));
    LEHR_ASSIGN(const lehr_group_options given, read_struct(options, "options"));
    LEHR_ASSIGN(const auto group, open_with(given, registry->next_seed()));
    out->id = registry->add_group(group);
    return {};
  });
}

lehr_status lehr_group_close(lehr_group group) {
  return boundary([&]() -> Status {
    Registry* const registry = Registry::get();
    if (registry == nullptr) return forked();
    LEHR_ASSIGN(auto removed, registry->remove_group(group.id));
    removed.reset();  // here, unless another thread's call still uses it
    return {};
  });
}

lehr_status lehr_group_describe(lehr_group group, lehr_group_info* out) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    lehr_group_info info{};
    info.split = static_cast<int32_t>(g.serving->split());
    info.devices = static_cast<uint32_t>(g.serving->devices());
    info.machine = static_cast<int32_t>(g.machine);
    info.layers = g.geometry.layers;
    info.kv_heads = g.geometry.kv_heads;
    info.q_heads = g.geometry.q_heads;
    info.head_dim = g.geometry.head_dim;
    info.page_tokens = g.geometry.page_tokens;
    write_struct(out, size, info);
    return {};
  });
}

lehr_status lehr_group_device(lehr_group group, uint32_t device, lehr_group_device_info* out) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const std::uint32_t size, check_size(out, "out"));
    if (device >= g.serving->devices()) {
      return invalid(fmt::format("device: {} of {}", device, g.serving->devices()),
                     Reason::kOutOfRange);
    }
    const runtime::Runtime& runtime = g.serving->runtime(device);
    const serving::Range range = serving::ranges_of(g.serving->units())[device];
    lehr_group_device_info info{};
    info.gpu = g.gpus[device];
    info.first_unit = range.first;
    info.units = range.count;
    info.hbm_pages = runtime.table().slots(kHbm).capacity();
    info.hbm_used_pages = runtime.table().slots(kHbm).used();
    info.pages = runtime.table().live_pages();
    write_struct(out, size, info);
    return {};
  });
}

lehr_status lehr_group_sequence_create(lehr_group group, const uint64_t* expected, size_t count,
                                       lehr_sequence* out) {
  return with_group(group, [&](Group& g) -> Status {
    if (count == 0) return {};
    LEHR_TRY(not_null(out, "out"));
    std::vector<SequenceId> made;
    for (size_t i = 0; i < count; ++i) {
      auto id = g.serving->create_sequence(expected == nullptr ? 0 : expected[i]);
      if (!id) {
        for (const SequenceId back : made) LEHR_TRY(g.serving->release(back));
        return std::move(id).error();
      }
      made.push_back(*id);
    }
    for (size_t i = 0; i < count; ++i) out[i] = new_member(g, made[i]);
    return {};
  });
}

lehr_status lehr_group_sequence_fork(lehr_group group, const lehr_sequence* parents, size_t count,
                                     lehr_sequence* out, lehr_status* statuses) {
  return with_group(group, [&](Group& g) -> Result<lehr_status> {
    if (count > 0) LEHR_TRY(not_null(parents, "parents"));
    if (count > 0) LEHR_TRY(not_null(out, "out"));
    return batch(count, statuses, [&](std::size_t i) -> Status {
      out[i] = {0};
      LEHR_ASSIGN(const SequenceId parent, member_of(g, parents[i]));
      LEHR_ASSIGN(const SequenceId child, g.serving->fork(parent));
      out[i] = new_member(g, child);
      return {};
    });
  });
}

lehr_status lehr_group_sequence_release(lehr_group group, const lehr_sequence* sequences,
                                        size_t count, lehr_status* statuses) {
  return with_group(group, [&](Group& g) -> Result<lehr_status> {
    if (count > 0) LEHR_TRY(not_null(sequences, "sequences"));
    return batch(count, statuses, [&](std::size_t i) -> Status {
      LEHR_ASSIGN(const SequenceId id, member_of(g, sequences[i]));
      LEHR_TRY(g.serving->release(id));
      LEHR_ASSIGN(const std::uint64_t slot,
                  handle_id(Kind::kGroupSequence, g.tag, sequences[i].id));
      g.sequences.erase(slot);
      return {};
    });
  });
}

lehr_status lehr_group_step_begin(lehr_group group, const lehr_sequence* sequences,
                                  const uint32_t* tokens, size_t count, void* const* streams) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const auto ids, members_of(g, sequences, count));
    std::vector<std::uint32_t> counts(count, 1);
    if (tokens != nullptr) counts.assign(tokens, tokens + count);
    std::span<void* const> lanes;
    if (streams != nullptr) lanes = {streams, g.serving->devices()};
    return g.serving->begin(ids, counts, lanes);
  });
}

lehr_status lehr_group_step_append(lehr_group group, uint32_t device, uint32_t layer,
                                   const lehr_tensor* k, const lehr_tensor* v) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const TensorPlace place, place_of(g, device));
    LEHR_ASSIGN(const contents::Tensor keys, tensor_of(place, k, "k"));
    LEHR_ASSIGN(const contents::Tensor values, tensor_of(place, v, "v"));
    return device == LEHR_GROUP_WHOLE ? g.serving->append(layer, keys, values)
                                      : g.serving->append_part(device, layer, keys, values);
  });
}

lehr_status lehr_group_step_attend(lehr_group group, uint32_t device,
                                   const lehr_attend_request* request) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const TensorPlace place, place_of(g, device));
    LEHR_ASSIGN(const AttendArgs args, attend_args(place, request));
    return device == LEHR_GROUP_WHOLE ? g.serving->attend(args.layer, args.call)
                                      : g.serving->attend_part(device, args.layer, args.call);
  });
}

lehr_status lehr_group_step_end(lehr_group group, lehr_step_report* reports, size_t count) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const auto out, StructArray<lehr_step_report>::of(reports, count, "reports", true));
    if (out && count != g.serving->devices()) {
      return invalid(
          fmt::format("reports: {}, the group has {} devices", count, g.serving->devices()),
          Reason::kOutOfRange);
    }
    LEHR_ASSIGN(const auto ended, g.serving->end());
    for (std::size_t d = 0; d < out.size(); ++d) {
      const auto& links = g.serving->runtime(d).options().platform.links;
      out.write(d, to_c(ended[d], links.size()));
    }
    return {};
  });
}

lehr_status lehr_group_step_abandon(lehr_group group) {
  return with_group(group, [&](Group& g) -> Status {
    if (!g.serving->in_step()) return invalid("no step is open");
    return g.serving->abandon();
  });
}

lehr_status lehr_group_rebalance(lehr_group group, const lehr_rebalance_request* request,
                                 lehr_rebalance_report* out) {
  return with_group(group, [&](Group& g) -> Status {
    LEHR_ASSIGN(const lehr_rebalance_request given, read_struct(request, "request"));
    std::uint32_t size = 0;
    if (out != nullptr) {
      LEHR_ASSIGN(size, check_size(out, "out"));
    }
    lehr_rebalance_report told{};
    LEHR_ASSIGN(const auto units, wanted_units(g, given, told));
    const auto before = g.serving->units();
    const bool moves = !std::equal(units.begin(), units.end(), before.begin(), before.end());
    LEHR_ASSIGN(const serving::Redealt moved, g.serving->redeal(units));
    told.moved = moves ? 1 : 0;
    told.copied_tokens = moved.tokens;
    told.shared_tokens = moved.shared_tokens;
    told.copied_bytes = moved.bytes;
    if (out != nullptr) write_struct(out, size, told);
    return {};
  });
}

}  // extern "C"
