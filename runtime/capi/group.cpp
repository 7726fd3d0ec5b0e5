// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/group.hpp"

#include <fmt/format.h>

namespace lehr::capi {

namespace {

bool same(const KvGeometry& a, const KvGeometry& b) {
  return a.layers == b.layers && a.kv_heads == b.kv_heads && a.q_heads == b.q_heads &&
         a.head_dim == b.head_dim && a.page_tokens == b.page_tokens &&
         a.element_bytes == b.element_bytes;
}

/// All of one machine and one model, with contents.
Status one_model(const std::vector<config::Config>& configs) {
  const config::Config& first = configs.front();
  for (std::size_t d = 0; d < configs.size(); ++d) {
    const config::Config& c = configs[d];
    if (c.step_contents != "kv" || c.geometry().layers == 0) {
      return invalid(fmt::format(
          "device {}: a group holds K and V: expected a geometry and step.contents = \"kv\"", d));
    }
    if (c.placement_block_bytes != 0)
      return invalid(fmt::format("device {}: a group has the step level alone", d));
    if (c.top_machine != first.top_machine || c.geometry_dtype != first.geometry_dtype ||
        c.step_rounding != first.step_rounding || !same(c.geometry(), first.geometry())) {
      return invalid(
          fmt::format("device {}: machine, geometry or rounding differ from device 0's", d),
          Reason::kLayoutMismatch);
    }
  }
  return {};
}

contents::Element element_of(const std::string& dtype) {
  if (dtype == "f16") return contents::Element::kF16;
  return dtype == "bf16" ? contents::Element::kBf16 : contents::Element::kF32;
}

}  // namespace

Result<std::shared_ptr<Group>> open_group(const std::vector<config::Config>& configs,
                                          serving::Split split, std::vector<double> weights,
                                          std::uint32_t seed) {
  if (configs.empty()) return invalid("configs: none", Reason::kOutOfRange);
  LEHR_TRY(one_model(configs));
  auto group = std::make_shared<Group>(seed);
  group->geometry = configs.front().geometry();
  const bool on_gpus = configs.front().top_machine == "cuda";
  group->machine = on_gpus ? MachineKind::kCuda : MachineKind::kHost;
  for (const config::Config& c : configs)
    group->gpus.push_back(on_gpus ? static_cast<std::int32_t>(c.top_device) : -1);
  serving::ServingGroupOptions options;
  options.geometry = group->geometry;
  options.element = element_of(configs.front().geometry_dtype);
  options.split = split;
  options.weights = weights.empty() ? std::vector<double>(configs.size(), 1.0) : std::move(weights);
  options.host_memory = !on_gpus;
  options.make = [configs, seed](std::uint32_t device,
                                 const KvGeometry& part) -> Result<serving::Part> {
    config::Config config = configs[device];
    config.geometry_layers = part.layers;
    config.geometry_kv_heads = part.kv_heads;
    config.geometry_q_heads = part.q_heads;
    auto instance = open_instance(config, seed);
    if (!instance) {
      Error error = std::move(instance).error();
      error.what = fmt::format("device {}: {}", device, error.what);
      return error;
    }
    return serving::Part{std::move((*instance)->contents), std::move((*instance)->step)};
  };
  LEHR_ASSIGN(group->serving, serving::ServingGroup::create(std::move(options)));
  return group;
}

}  // namespace lehr::capi
